"""The file of `Checkpoint.from_dict`: a pickle whose bytes follow from its content alone.

Called by `checkpoint`. Ranks that pass equal data give equal files; the agents compare them, and what differs is a
mistake worth a word. torch's own pickles hold the address of each tensor's memory and its device: another file in each
process. Here a tensor's memory is written as it lies on the CPU, without a copy, and once however many tensors share
it; any `pickle.load` reads it back into memory that the tensors then use. NumPy's arrays are written without a copy
too. Knows torch and NumPy only where the user imported them: data of neither is the same bytes with them and without.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import pickle
import sys
from typing import Any, BinaryIO, Dict, Mapping, NamedTuple, Union

FROM_BYTES = "frombuffer"
"""torch's, which makes a tensor that uses the memory it is given."""
MEMORY_OF = "untyped_storage"
"""Of a tensor."""


def dump(data: Mapping[str, Any], file: BinaryIO) -> None:
    """Write `data`. Raises what pickle raises."""
    _Pickler(file).dump(data)


def culprit(data: Any) -> str:
    """Where in `data` the value stands that no pickle takes: `['state']['log']`."""
    entries = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, (list, tuple)) else ()
    for key, value in entries:
        try:
            _Pickler(_Nowhere()).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            return f"[{key!r}]{culprit(value)}"
    return ""


class _Nowhere:
    """The file of what is only tried."""

    def write(self, data: bytes) -> None:
        """It is not kept."""


class _Memory(NamedTuple):
    """What tensors lie in."""

    storage: Any


class _Body(NamedTuple):
    """Its bytes, as a tensor."""

    storage: Any


class _Pickler(pickle.Pickler):
    """How memory is made again, in words of torch's and Python's own:
    `TypedStorage(wrap_storage=frombuffer(bytearray, dtype=uint8).untyped_storage(), dtype=..., _internal=True)`.
    """

    def __init__(self, file: Union[BinaryIO, _Nowhere]) -> None:
        super().__init__(file, protocol=5)
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")
        if self._torch is not None:
            self._from_bytes = functools.partial(getattr(self._torch, FROM_BYTES), dtype=self._torch.uint8)
            self._memory_of = operator.methodcaller(MEMORY_OF)
        self._memories: Dict[int, _Memory] = {}
        """Kept to the end: what is made meanwhile has another address."""
        self._written = pickle.PickleBuffer(b"")
        self._owner: Any = None

    def reducer_override(self, value: Any) -> Any:
        """As pickle asks for it."""
        if self._torch is not None:
            if isinstance(value, self._torch.storage.TypedStorage):
                # Asking a typed storage itself warns that it is deprecated.
                return self._typed(value._untyped_storage, value.dtype)
            if isinstance(value, self._torch.storage.UntypedStorage):
                return self._typed(value, self._torch.uint8)  # as torch's own files have it
            if isinstance(value, _Memory):
                if value.storage.nbytes() == 0:
                    return self._torch.storage.UntypedStorage, ()
                return self._memory_of, (_Body(value.storage),)
            if isinstance(value, _Body):
                storage = value.storage if value.storage.device.type == "cpu" else value.storage.cpu()
                return self._from_bytes, (self._bytes_of(storage, storage.data_ptr(), storage.nbytes(), False),)
        if self._numpy is not None and isinstance(value, self._numpy.ndarray):
            return self._array(value)
        return NotImplemented

    def _typed(self, storage: Any, dtype: Any) -> Any:
        memory = self._memories.setdefault(storage._cdata, _Memory(storage))
        made = functools.partial(self._torch.storage.TypedStorage, wrap_storage=memory, dtype=dtype, _internal=True)
        return made, ()

    def _array(self, array: Any) -> Any:
        """In the words of NumPy's `__reduce__`. NumPy 1 does not know those for protocol 5, and a read-only array would
        come back read-only.
        """
        if type(array) is not self._numpy.ndarray or array.dtype.hasobject:
            return array.__reduce_ex__(4)
        make, args, (version, *_) = self._numpy.empty(0).__reduce__()
        whole = array if array.flags.forc else array.copy()
        body = self._bytes_of(whole, whole.__array_interface__["data"][0], whole.nbytes, True)
        return make, args, (version, array.shape, array.dtype, whole.flags.fnc, body)

    def _bytes_of(self, owner: Any, address: int, size: int, constant: bool) -> pickle.PickleBuffer:
        """Where they are; what was copied for the ones before, from a GPU, goes. `constant`: `bytes` in the file, and
        no `bytearray`.
        """
        self._written.release()
        self._owner = owner
        there = memoryview((ctypes.c_char * size).from_address(address))
        self._written = pickle.PickleBuffer(there.toreadonly() if constant else there)
        return self._written
