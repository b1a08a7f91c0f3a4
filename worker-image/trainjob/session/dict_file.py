"""The file of `Checkpoint.from_dict`: a pickle whose bytes follow from its content alone.

Called by `checkpoint`. Ranks that pass equal data give equal files; the agents compare them, and what differs is a
mistake worth a word. torch's own pickles hold the address of each tensor's memory and its device: another file in each
process. Here a tensor's memory is written as it lies on the CPU, without a copy, and once however many tensors share
it; any `pickle.load` reads it back into memory that the tensors then use. Knows torch only where the user imported it.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import pickle
import sys
from typing import Any, BinaryIO, Dict, Mapping, NamedTuple

FROM_BYTES = "frombuffer"
"""torch's, which makes a tensor that uses the memory it is given."""
MEMORY_OF = "untyped_storage"
"""Of a tensor."""


def dump(data: Mapping[str, Any], file: BinaryIO) -> None:
    """Write `data`. Raises what pickle raises."""
    torch = sys.modules.get("torch")
    if torch is None:
        pickle.dump(data, file, protocol=4)
    else:
        _pickler(torch, file).dump(data)


def culprit(data: Any) -> str:
    """Where in `data` the value stands that no pickle takes: `['state']['log']`."""
    entries = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, (list, tuple)) else ()
    for key, value in entries:
        try:
            pickle.dumps(value, protocol=4)
        except (pickle.PicklingError, TypeError, AttributeError):
            return f"[{key!r}]{culprit(value)}"
    return ""


class _Memory(NamedTuple):
    """What tensors lie in."""

    storage: Any


class _Body(NamedTuple):
    """Its bytes, as a tensor."""

    storage: Any


def _pickler(torch: Any, file: BinaryIO) -> pickle.Pickler:
    """How memory is made again, in words of torch's and Python's own:
    `TypedStorage(wrap_storage=frombuffer(bytearray, dtype=uint8).untyped_storage(), dtype=..., _internal=True)`.
    """
    typed, untyped = torch.storage.TypedStorage, torch.storage.UntypedStorage
    from_bytes = functools.partial(getattr(torch, FROM_BYTES), dtype=torch.uint8)
    memory_of = operator.methodcaller(MEMORY_OF)

    class _Pickler(pickle.Pickler):
        def __init__(self) -> None:
            super().__init__(file, protocol=5)
            self._memories: Dict[int, _Memory] = {}
            """Kept to the end: what is made meanwhile has another address."""
            self._written = pickle.PickleBuffer(b"")
            self._copy: Any = None

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, typed):
                # Asking a typed storage itself warns that it is deprecated.
                return self._made(value._untyped_storage, value.dtype)
            if isinstance(value, untyped):
                return self._made(value, torch.uint8)  # as torch's own files have it
            if isinstance(value, _Memory):
                return (memory_of, (_Body(value.storage),)) if value.storage.nbytes() else (untyped, ())
            if isinstance(value, _Body):
                return from_bytes, (self._bytes_of(value.storage),)
            return NotImplemented

        def _made(self, storage: Any, dtype: Any) -> Any:
            memory = self._memories.setdefault(storage._cdata, _Memory(storage))
            return functools.partial(typed, wrap_storage=memory, dtype=dtype, _internal=True), ()

        def _bytes_of(self, storage: Any) -> pickle.PickleBuffer:
            """Where they are; what was copied for the one before, from a GPU, goes."""
            self._written.release()
            self._copy = storage if storage.device.type == "cpu" else storage.cpu()
            bytes_ = (ctypes.c_char * self._copy.nbytes()).from_address(self._copy.data_ptr())
            self._written = pickle.PickleBuffer(bytes_)
            return self._written

    return _Pickler()
