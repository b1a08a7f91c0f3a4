"""State of each rank that travels with every checkpoint: data loader positions, random number generators.

`trainjob.torch` registers providers; `calls.report` gives their states when a checkpoint is saved; the agent stores
them as `.trainjob/rank-<r>.state` in the checkpoint; `calls.get_checkpoint` brings it back. A provider that registers
after that gets its state at once, so that the order of prepare_data_loader() and get_checkpoint() does not matter.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from trainjob.session import state_format
from trainjob.session.errors import CheckpointError


@dataclass(frozen=True)
class Saved:
    """What a provider gets back: its state, and where it was taken."""

    state: Any
    rank: int
    """The rank that saved it: another one than this rank when the world grew."""
    world_size: int
    """Ranks of the attempt that saved it."""
    first: Any = None
    """What rank 0 saved, where the number of ranks is another one now and this rank's state is not rank 0's."""


@dataclass(frozen=True, eq=False)
class Provider:
    """`get` returns data (see `state_format`), `set` takes it back."""

    get: Callable[[], Any]
    set: Callable[[Saved], None]


_providers: Dict[str, Provider] = {}
_loaded: Dict[str, Saved] = {}
_counts: Dict[str, int] = {}


def register(name: str, get: Callable[[], Any], set: Callable[[Saved], None]) -> Provider:
    """Add (or replace) a provider. If a checkpoint was already restored and knows `name`, `set` is called now."""
    provider = _providers[name] = Provider(get, set)
    saved = _loaded.get(name)
    if saved is not None:
        set(saved)
    return provider


def numbered(kind: str) -> str:
    """A new name for the next provider of a kind: "kind-0", "kind-1", ... in the order of creation, the same in each
    attempt.
    """
    _counts[kind] = _counts.get(kind, -1) + 1
    return f"{kind}-{_counts[kind]}"


def unregister(name: str, provider: Provider) -> None:
    """The provider's state no longer travels; for what is gone before the rank is."""
    if _providers.get(name) is provider:
        del _providers[name]


def is_there() -> bool:
    """Whether anything is registered."""
    return bool(_providers)


def collect(world_size: int) -> bytes:
    """All providers' states as one blob; empty when nothing is registered."""
    if not _providers:
        return b""
    states = {name: provider.get() for name, provider in _providers.items()}
    return state_format.dumps({"world_size": world_size, "states": states})


def bring(found: Mapping[str, Any], world_size: int, fetch: Callable[[str, List[str]], str]) -> None:
    """`load` for a rank that was given a checkpoint: `found` is the agent's answer, `fetch` brings files of it. What
    rank 0 saved is asked for only if the number of ranks is not `world_size`.
    """
    from trainjob.checkpoint.records.layout import state_path

    own, first, path = str(found["state"]), None, state_path(0)
    if found["world_size"] != world_size and not own.endswith(f"/{path}"):
        with open(str(found["listing"]), encoding="utf-8", errors="surrogateescape") as file:
            if path in json.load(file):
                first = os.path.join(fetch(str(found["id"]), [path]), path)
    load(own, first)


def load(path: str, first: Optional[str] = None) -> None:
    """Read states from the file of a checkpoint that holds this rank's (or those of rank 0) and hand them to their
    providers. `first`: the file of rank 0, when the number of ranks is another one now.
    """
    owner = _owner(path)
    world_size, states = _read(path)
    of_first = _read(first)[1] if first is not None and first != path else {}
    for name, state in states.items():
        saved = _loaded[name] = Saved(state, owner, world_size, of_first.get(name))
        if name in _providers:
            _providers[name].set(saved)


def _read(path: str) -> Tuple[int, Dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            content = state_format.loads(file.read())
        return content["world_size"], dict(content["states"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The state of rank {_owner(path)} in {path} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _owner(path: str) -> int:
    return int(os.path.basename(path)[len("rank-") : -len(".state")])


def clear() -> None:
    """Forget providers and states: for processes that are many ranks in a row."""
    _providers.clear()
    _loaded.clear()
    _counts.clear()
