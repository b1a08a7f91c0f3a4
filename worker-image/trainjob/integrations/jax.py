"""JAX over the ranks of a TrainJob: one process a rank, which see each other's devices.

```python
trainjob.jax.initialize()
mesh = jax.sharding.Mesh(jax.devices(), "data")
```

JAX is imported when `initialize` is called. A `JaxTrainer` calls it before its function, and a script's own
`jax.distributed.initialize()` is this (`session.unchanged`).
"""

from __future__ import annotations

import inspect
from typing import Any

from trainjob.integrations.needed import missing
from trainjob.integrations.ring import free_port, joined, own_address
from trainjob.session import calls

__all__ = ["initialize"]

_LIMITS_S = {"heartbeat_timeout_seconds": 10, "shutdown_timeout_seconds": 24 * 3600}
"""JAX's own are 100 and 300: a rank whose peer is gone would wait for so long at its exit, and all ranks would be
aborted where one has more to do at the end than the others, 5 minutes later.
"""


def initialize() -> None:
    """Has the ranks of this attempt see each other: `jax.distributed.initialize` with the address of rank 0, the number
    of ranks and this one's. Where a machine has several ranks, each sees the accelerator of its local rank alone.

    Every rank calls it, before anything that asks JAX for a device, and anew in each attempt. A call of
    `jax.distributed.initialize` after it is heard as done, whatever its arguments: a script that calls that by itself
    stays as it is. With one rank there is nobody to see, and nothing is done.

    Raises ImportError without JAX, RuntimeError when JAX has used its devices already.
    """
    join()


def join(**wishes: Any) -> None:
    """`initialize`, with arguments of `jax.distributed.initialize` that win over its own."""
    try:
        from jax import distributed
    except ImportError as error:
        raise missing("jax", "jax>=0.7", error) from error
    context = calls.get_context()
    if context.world_size > 1 and not distributed.is_initialized():
        mine = joined(own_address(), free_port()) if context.rank == 0 else ""
        known = inspect.signature(distributed.initialize).parameters
        coordinator = calls.broadcast_from_rank_zero(mine)
        settings = {
            "local_device_ids": [context.local_rank] if context.local_world_size > 1 else None,
            "coordinator_bind_address": coordinator if context.rank == 0 else None,
            **{name: limit for name, limit in _LIMITS_S.items() if name in known},
            **wishes,
            # In a pod it else asks the API server, which its token gives no right to, for what is all known here.
            "cluster_detection_method": "deactivate",
        }
        distributed.initialize(coordinator, context.world_size, context.rank, **settings)
    distributed.initialize = _is_done


def _is_done(*_: Any, **__: Any) -> None:
    """In the place of `jax.distributed.initialize`, which raises when it is called a second time."""
