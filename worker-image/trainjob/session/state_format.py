"""What a rank's state is stored as: a line of JSON, then raw bytes. Reading it runs nobody's code, whoever wrote it:
a checkpoint may come from another job.

    TJSTATE1 | length of the JSON (8 bytes, big-endian) | JSON | bytes that the JSON refers to

JSON's own types stand for themselves. {"!": kind, ...} are the others: tuple, bytes, dict (with any keys), tensor,
array; an `at` is [offset, length] in the bytes behind. Older checkpoints have pickles: of these only what this library
wrote is read. Called by `rank_state`. Imports torch and numpy only when a state has some of theirs.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from typing import Any, Callable, Dict, List

_MAGIC = b"TJSTATE1"
_PICKLE = b"\x80"
_HEAD = len(_MAGIC) + 8
_ARRAY = ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")
_PICKLED = {
    *_ARRAY,
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("collections", "OrderedDict"),
}
"""What the pickles of older versions name, besides torch.storage._load_from_bytes."""


def dumps(value: Any) -> bytes:
    """Raises TypeError for what is no data."""
    parts: List[bytes] = []
    text = json.dumps(_encoded(value, parts, [0])).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "big"), text, *parts])


def loads(data: bytes) -> Any:
    """Raises ValueError."""
    try:
        if data[:1] == _PICKLE:
            return _Unpickler(io.BytesIO(data)).load()
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it is no state of a rank")
        end = _HEAD + int.from_bytes(data[len(_MAGIC) : _HEAD], "big")
        return _decoded(json.loads(data[_HEAD:end]), memoryview(data)[end:])
    except ValueError:
        raise
    except Exception as error:  # torn or malicious: whatever a parser, torch or numpy says of it
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _encoded(value: Any, parts: List[bytes], size: List[int]) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, list):
        return [_encoded(item, parts, size) for item in value]
    if isinstance(value, tuple):
        return {"!": "tuple", "of": [_encoded(item, parts, size) for item in value]}
    if isinstance(value, dict):
        return {"!": "dict", "of": [[_encoded(part, parts, size) for part in item] for item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"!": "bytes", "at": _behind(bytes(value), parts, size)}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        dtype = str(value.dtype).rpartition(".")[2]
        at = _behind(bytes(flat.tolist()), parts, size)
        return {"!": "tensor", "dtype": dtype, "shape": list(value.shape), "at": at}
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        at = _behind(value.tobytes(), parts, size)
        return {"!": "array", "dtype": value.dtype.str, "shape": list(value.shape), "at": at}
    if numpy is not None and isinstance(value, numpy.generic):
        return _encoded(value.item(), parts, size)
    raise TypeError(f"a rank's state is data, and {type(value).__name__} is none of it")


def _behind(data: bytes, parts: List[bytes], size: List[int]) -> List[int]:
    parts.append(data)
    size[0] += len(data)
    return [size[0] - len(data), len(data)]


def _decoded(value: Any, raw: memoryview) -> Any:
    if isinstance(value, list):
        return [_decoded(item, raw) for item in value]
    if not isinstance(value, dict):
        return value
    return _KINDS[value["!"]](value, raw)


def _bytes(value: Dict[str, Any], raw: memoryview) -> bytes:
    start, length = map(int, value["at"])
    if start < 0 or length < 0 or start + length > len(raw):
        raise ValueError("its end is missing")
    return bytes(raw[start : start + length])


def _tensor(value: Dict[str, Any], raw: memoryview) -> Any:
    import torch

    dtype = getattr(torch, str(value["dtype"]))
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{value['dtype']!r} is no type of a tensor")
    data = bytearray(_bytes(value, raw))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.clone().reshape(list(map(int, value["shape"])))


def _array(value: Dict[str, Any], raw: memoryview) -> Any:
    import numpy

    dtype = numpy.dtype(str(value["dtype"]))
    return numpy.frombuffer(_bytes(value, raw), dtype).reshape(list(map(int, value["shape"]))).copy()


_KINDS: Dict[str, Callable[[Dict[str, Any], memoryview], Any]] = {
    "tuple": lambda value, raw: tuple(_decoded(item, raw) for item in value["of"]),
    "dict": lambda value, raw: {_decoded(key, raw): _decoded(item, raw) for key, item in value["of"]},
    "bytes": _bytes,
    "tensor": _tensor,
    "array": _array,
}


class _Unpickler(pickle.Unpickler):
    """Of what older versions wrote: numbers, strings, containers, tensors and arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises ValueError for everything else, before anything of it is imported."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) not in _PICKLED:
            raise ValueError(f"it names {module}.{name}, which no state of ours does: it is not unpickled")
        return super().find_class(module, name)


def _storage(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)
