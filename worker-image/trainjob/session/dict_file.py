"""The file of `Checkpoint.from_dict`: a pickle whose bytes follow from its content alone.

Called by `checkpoint`. Ranks that pass equal data give equal files; the agents compare them, and what differs is a
mistake worth a word. torch's own pickles hold the address of each tensor's memory and its device: another file in each
process. Here a tensor's memory is written in torch's archive format, from the CPU; any `pickle.load` reads it back.
Knows torch only where the user imported it.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, BinaryIO, Mapping


def dump(data: Mapping[str, Any], file: BinaryIO) -> None:
    """Write `data`. Raises what pickle raises."""
    torch = sys.modules.get("torch")
    if torch is None:
        pickle.dump(data, file, protocol=4)
        return
    storages = (torch.storage.TypedStorage, torch.storage.UntypedStorage)

    class _Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            return _memory(torch, value) if isinstance(value, storages) else NotImplemented

    _Pickler(file, protocol=4).dump(data)


def culprit(data: Any) -> str:
    """Where in `data` the value stands that no pickle takes: `['state']['log']`."""
    entries = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, (list, tuple)) else ()
    for key, value in entries:
        try:
            pickle.dumps(value, protocol=4)
        except (pickle.PicklingError, TypeError, AttributeError):
            return f"[{key!r}]{culprit(value)}"
    return ""


def _memory(torch: Any, storage: Any) -> Any:
    """How a tensor's memory is made again: torch's own function on bytes that name neither address nor device."""
    # Asking a typed storage itself warns that it is deprecated.
    typed = isinstance(storage, torch.storage.TypedStorage)
    untyped = storage._untyped_storage if typed else storage
    if untyped.device.type != "cpu":
        # `cpu()` of a typed storage loses the type: it is put back around the bytes.
        untyped = untyped.cpu()
        storage = (
            torch.storage.TypedStorage(wrap_storage=untyped, dtype=storage.dtype, _internal=True) if typed else untyped
        )
    body = io.BytesIO()
    torch.save(storage, body)
    return torch.storage._load_from_bytes, (body.getvalue(),)
