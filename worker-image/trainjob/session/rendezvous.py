"""How this rank finds the others where the agent serves torch's store (contract.ENV_AGENT_STORE).

Called by `rank` at boot; imports nothing of torch. The store outlives a process group, as rank 0's own does not: a
group that is made after another was destroyed would find the addresses of that one. So each has names of its own in
it, by its size and by how many of that size this process has made before.

What a rank starts does not inherit the variable: it has not this change, and would look for a store of its own where
nobody serves one.
"""

from __future__ import annotations

import os
import sys
import types
from collections import Counter
from typing import Any, Callable, Optional
from typing import Counter as CounterOf

from trainjob.session.on_import import on_import
from trainjob_api import contract

MODULE = "torch.distributed.rendezvous"
_CREATE = "_create_c10d_store"
"""Torch's function behind env:// and tcp://: (hostname, port, rank, world_size, timeout, ...) -> a store."""


def use_agent_store() -> None:
    """If the agent serves one, for this process from now on, and for no process that it starts."""
    if os.environ.pop(contract.ENV_AGENT_STORE, None) != str(True):
        return
    on_import(MODULE, _change)


def _change(module: types.ModuleType) -> None:
    create: Optional[Callable[..., Any]] = getattr(module, _CREATE, None)
    if create is None:
        # Another torch, which looks at the variable where we do not know.
        os.environ[contract.ENV_AGENT_STORE] = str(True)
    else:
        setattr(module, _CREATE, _through_agent(create))


def _through_agent(create: Callable[..., Any]) -> Callable[..., Any]:
    ours = os.environ.get(contract.ENV_MASTER_ADDR), os.environ.get(contract.ENV_MASTER_PORT)
    made: CounterOf[int] = Counter()

    def create_store(hostname: str, port: int, rank: int, world_size: int, *rest: Any, **names: Any) -> Any:
        if (hostname, str(port)) != ours:
            # Another store, which its own rank 0 serves.
            return create(hostname, port, rank, world_size, *rest, **names)
        distributed: Any = sys.modules["torch.distributed"]
        number, made[world_size] = made[world_size], made[world_size] + 1
        os.environ[contract.ENV_AGENT_STORE] = str(True)
        try:
            store = create(hostname, port, rank, world_size, *rest, **names)
        finally:
            os.environ.pop(contract.ENV_AGENT_STORE, None)
        return distributed.PrefixStore(f"{world_size}/{number}", store)

    return create_store
