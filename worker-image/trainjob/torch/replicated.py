"""DistributedDataParallel whose `state_dict()` has the model's own names: a checkpoint fits any number of ranks.

Made by `prepare_model`. DDP puts `module.` before every name; a job of one rank, a script that evaluates the model and
a server have the model alone, and their `load_state_dict` would refuse such a file. Here the names are those of the
model inside, at any size. Loading takes both: files of DDP's own keep loading, wrapped or not.

torch.distributed.checkpoint walks from a wrapper to its model by those very prefixes, and strips them itself: it gets
torch's names.
"""

from __future__ import annotations

import copy
import copyreg
import sys
from collections import OrderedDict
from types import FrameType
from typing import Any, Dict, List, Mapping, MutableMapping, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

PREFIX = "module."
_WALKS_BY_PREFIX = "torch.distributed.checkpoint"


class Replicated(DistributedDataParallel):
    """DDP in all but the names of its state."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:  # type: ignore[override]
        """That of the model inside."""
        found: Dict[str, Any] = (
            super().state_dict(*args, **kwargs) if _asked_by_torch() else self.module.state_dict(*args, **kwargs)
        )
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Into the model inside; names may have DDP's prefix."""
        given = dict(state_dict)
        _strip(given, "", list(self.module.state_dict()))
        if hasattr(state_dict, "_metadata"):
            # Versions of the modules, which decide how older states are read.
            given = _with_metadata(given, state_dict._metadata)
        return self.module.load_state_dict(given, strict=strict, assign=assign)

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        # As a part of a larger module: torch goes on with the names below `module.`.
        own = list(self.module.state_dict())
        _strip(state_dict, prefix, own)
        for name in own:
            if prefix + name in state_dict:
                state_dict[prefix + PREFIX + name] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Replicated:
        twin = memo[id(self)] = object.__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as torch's own class: who reads it need not have this library."""
        plain = (DistributedDataParallel, object, None)
        state: Any = self.__getstate__()  # type: ignore[no-untyped-call]
        return copyreg._reconstructor, plain, state  # type: ignore[attr-defined]


class TakesPrefixed:
    """Hook of a model that is not wrapped: a state that DDP named loads into it."""

    def __call__(self, module: torch.nn.Module, state_dict: MutableMapping[str, Any], prefix: str, *_: Any) -> None:
        _strip(state_dict, prefix, list(module.state_dict()))

    def __reduce__(self) -> Any:
        """Pickled with the model as a callable that does nothing: who reads it need not have this library."""
        return getattr, ("", "format")


def _strip(state: MutableMapping[str, Any], prefix: str, own: List[str]) -> None:
    """Take DDP's prefix off where the state has it: where more of the model's names are there with it than without.

    (A model may have a part called `module` itself.)
    """
    bare = sum(prefix + name in state for name in own)
    prefixed = sum(prefix + PREFIX + name in state for name in own)
    if prefixed <= bare:
        return
    for name in [key for key in state if key.startswith(prefix + PREFIX)]:
        state[prefix + name[len(prefix + PREFIX) :]] = state.pop(name)


def _with_metadata(given: Dict[str, Any], metadata: Any) -> Dict[str, Any]:
    kept: Any = OrderedDict(given)
    if any(name == "module" or name.startswith(PREFIX) for name in metadata):
        metadata = {
            name[len(PREFIX) :] if name.startswith(PREFIX) else "": version
            for name, version in metadata.items()
            if name == "module" or name.startswith(PREFIX)
        }
    kept._metadata = metadata
    result: Dict[str, Any] = kept
    return result


def _asked_by_torch() -> bool:
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_WALKS_BY_PREFIX):
            return True
        if not name.startswith("torch."):
            return False
        frame = frame.f_back
    return False
