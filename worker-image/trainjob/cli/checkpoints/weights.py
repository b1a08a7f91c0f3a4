"""Whether the weights in a checkpoint's files are numbers: `tj model get` looks, once they are here.

Looks at what torch, safetensors and `Checkpoint.from_dict` write. Nothing of the files is run: a pickle is read by an
unpickler that makes tensors and plain containers alone. What cannot be read so counts as unknown, not as broken. Needs
torch; without it nothing is known.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.session import dict_file
from trainjob_api.contract import DICT_FILE

LIMIT = 4 << 30
"""Bytes of the files of one checkpoint; larger ones are not looked at."""
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_SAFE = ".safetensors"
_REBUILDS = frozenset(("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"))


def broken(folder: str) -> list[str] | None:
    """Names of the tensors with a NaN or an infinity in them; None: nothing here could be read."""
    paths = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in sorted(names)]
    paths = [path for path in paths if path.endswith((*_TORCH, _SAFE)) or os.path.basename(path) == DICT_FILE]
    try:
        if not paths or sum(map(os.path.getsize, paths)) > LIMIT:
            return None
        import torch
    except (OSError, ImportError):
        return None
    found, read = [], False
    for path in paths:
        try:
            for name, tensor in _tensors(torch, path):
                read = True
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
                    found.append(name)
        except Exception:  # whatever a file may hold: that it cannot be read says nothing of its numbers
            continue
    return found if read else None


def _tensors(torch: Any, path: str) -> Iterator[tuple[str, Any]]:
    if path.endswith(_SAFE):
        yield from _of_safetensors(torch, path)
    elif os.path.basename(path) == DICT_FILE:
        with open(path, "rb") as file:
            yield from _named(torch, _Unpickler(file, torch).load())
    else:
        yield from _named(torch, torch.load(path, map_location="cpu", weights_only=True))


def _named(torch: Any, value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in containers, by their keys: `model.fc.weight`."""
    if isinstance(value, torch.Tensor):
        yield name or "tensor", value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(torch, each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _named(torch, each, f"{name}.{at}" if name else str(at))


def _of_safetensors(torch: Any, path: str) -> Iterator[tuple[str, Any]]:
    types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in types:
                begin, end = entry["data_offsets"]
                file.seek(start + begin)
                data = bytearray(file.read(end - begin))
                yield name, torch.frombuffer(data, dtype=types[entry["dtype"]]) if data else torch.empty(0)


class _Other:
    """In the place of everything that is no tensor and no container."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        return

    def __setstate__(self, _state: Any) -> None:
        return


class _Partial:
    """In the place of `functools.partial`: what it calls is what `find_class` lets through, or no function at all."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._named: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self._named = state[2]

    def __call__(self, *args: Any) -> Any:
        return self._function(*args, **self._named)


def _stand_ins(torch: Any) -> dict[tuple[str, str], Any]:
    """How `Checkpoint.from_dict` has a tensor's memory made again, now and before, and nothing else of these names."""

    def from_bytes(data: Any, dtype: Any) -> Any:
        return torch.frombuffer(data, dtype=dtype) if isinstance(data, bytearray) else _Other()

    def memory_of(tensor: Any) -> Any:
        return tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else _Other()

    def typed(wrap_storage: Any, dtype: Any, _internal: Any) -> Any:
        if not isinstance(wrap_storage, torch.UntypedStorage):
            return _Other()
        return torch.storage.TypedStorage(wrap_storage=wrap_storage, dtype=dtype, _internal=True)

    return {
        ("functools", "partial"): _Partial,
        ("builtins", "getattr"): lambda _of, name, *_: from_bytes if name == dict_file.FROM_BYTES else _Other,
        ("operator", "methodcaller"): lambda name, *_, **__: memory_of if name == dict_file.MEMORY_OF else _Other,
        ("torch.storage", "TypedStorage"): typed,
        ("torch.storage", "UntypedStorage"): lambda: torch.UntypedStorage(),
        ("torch.storage", "_load_from_bytes"): lambda data: torch.load(
            io.BytesIO(data), map_location="cpu", weights_only=True
        ),
    }


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, torch: Any) -> None:
        super().__init__(file)
        self._torch, self._stand_ins = torch, _stand_ins(torch)

    def find_class(self, module: str, name: str) -> Any:
        """Those that make tensors; a stand-in for all others."""
        torch = self._torch
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in _REBUILDS:
            return getattr(torch._utils, name)
        # Asking torch itself for a name imports some of its parts.
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        return self._stand_ins.get((module, name), _Other)
