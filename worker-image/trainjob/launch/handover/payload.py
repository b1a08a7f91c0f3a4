"""Carries the training function, its config and the stop criterion from the launcher to every rank.

A payload is one file: a JSON header line, then the cloudpickle of the objects. The header holds what a rank needs
before it may unpickle (import paths, the process group's settings). What cannot travel is refused here, naming the
variable.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import io
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.handover.validation import ValidationConfig
from trainjob_api.contract import FunctionCode

MIB = 1024 * 1024
WARN_BYTES = 16 * MIB
LIMIT_BYTES = 64 * MIB
_DEPTH = 4

NONE, TORCH, JAX, TENSORFLOW, XGBOOST = "", "torch", "jax", "tensorflow", "xgboost"
"""Frameworks: what is set up before the function."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a rank needs to know before it unpickles."""

    name: str | None = None
    """Of the run, as the user gave it; None: it was given none."""
    framework: str = TORCH
    """What is set up before the function."""
    backend: str | None = None
    """gloo | nccl | None (by `use_gpu`)."""
    timeout_s: int = 1800
    use_gpu: bool = False
    return_path: str | None = None
    """Where rank 0 leaves what the function returned; None: nowhere."""
    return_key: str | None = None
    """Of what goes to the launcher through storage: see `returned`."""
    python: str = field(default_factory=lambda: ".".join(map(str, sys.version_info[:2])))
    all_ranks: bool = False
    """The callbacks want the metrics of each rank."""
    sys_path: list[str] = field(default_factory=list)
    """Import paths of the launcher."""
    code: FunctionCode | None = None
    """For agents; None: the function's source cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The objects that travel."""

    train_loop: Callable[..., Any]
    config: Mapping[str, Any] | None = None
    stop: Callable[..., bool] | Mapping[str, float] | None = None
    validation: ValidationConfig | None = None


class _TooLarge(Exception):
    """More bytes than the limit."""


class _Bounded(io.BytesIO):
    """Refuses to grow beyond the limit, so that a huge object is not copied in whole before it is refused."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self.tell() + size > self._limit:
            raise _TooLarge
        return super().write(data)


def write(path: str, body: bytes, header: Header) -> None:
    """Write the payload file, readable by this user alone; `body` is what `dumps` returned."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(header_line(header))
            file.write(body)
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be written ({error.strerror}): free some space there, or set TMPDIR"
        ) from error


def read_header(path: str) -> Header:
    """The header alone. Raises LaunchError when the file is missing or no payload."""
    try:
        with open(path, "rb") as file:
            return header_of(file.readline())
    except (OSError, ValueError, TypeError) as error:
        raise LaunchError(f"{path} is no payload of a trainer: {error}") from error


def header_of(content: bytes) -> Header:
    """Of a payload file's bytes. Raises ValueError, TypeError."""
    return Header(**json.loads(content.split(b"\n", 1)[0]))


def read(path: str) -> Payload:
    """The objects. Call it once `sys.path` holds the header's entries; errors of the user's imports come through as
    they are.
    """
    import cloudpickle

    with open(path, "rb") as file:
        file.readline()
        content: dict[str, Any] = cloudpickle.load(file)
    return Payload(**content)


def dumps(payload: Payload, limit: int = LIMIT_BYTES) -> bytes:
    """Pickle, or refuse naming the variable that cannot travel or is too large."""
    parts: dict[str, Any] = {"train_loop": payload.train_loop, "config": payload.config, "stop": payload.stop}
    carry_by_value(payload.train_loop)
    if payload.validation is not None:
        parts["validation"] = payload.validation
        carry_by_value(payload.validation.fn)
    try:
        body = _pickle(parts, limit)
    except _TooLarge:
        raise ConfigError(*_too_large(payload, limit)) from None
    except Exception as error:  # whatever a user's object raises while it is pickled
        raise _cannot_travel(payload, error) from error
    if len(body) > WARN_BYTES:
        name, size = _largest(payload)
        warnings.warn(
            f"{name} makes the training function {_mib(len(body))} large ({_mib(size)} of it), and every start of a "
            "rank reads it: load data inside the function instead",
            UserWarning,
            stacklevel=4,
        )
    return body


def header_line(header: Header) -> bytes:
    """The first line of a payload file."""
    return json.dumps(asdict(header)).encode() + b"\n"


def carry_by_value(loop: Callable[..., Any]) -> None:
    """Send the code of a module that ranks could not import (an unimportable test module, a notebook's helper)
    instead of its name.
    """
    import cloudpickle

    name = module_of(loop)
    module = sys.modules.get(name)
    if module is None or name == "__main__" or name in sys.builtin_module_names or _importable(name):
        return
    cloudpickle.register_pickle_by_value(module)


def module_of(loop: Callable[..., Any]) -> str:
    """The name of the module that a training function comes from."""
    function = loop.func if isinstance(loop, functools.partial) else inspect.unwrap(loop)
    return getattr(function, "__module__", None) or type(loop).__module__


def _importable(name: str) -> bool:
    """Whether a fresh interpreter with our sys.path would find this module (sys.modules and import hooks of pytest
    left aside).
    """
    path: Any = None
    for depth in range(len(name.split("."))):
        part = ".".join(name.split(".")[: depth + 1])
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return _editable(part)
        path = spec.submodule_search_locations
    return True


def _editable(name: str) -> bool:
    """Modules that an installed finder knows (editable installs): those come back in the ranks, which run the same
    interpreter.
    """
    for finder in sys.meta_path:
        if type(finder).__module__.startswith(("__editable__", "editables")) or "editable" in str(type(finder)).lower():
            found = getattr(finder, "find_spec", lambda *_: None)(name, None)
            if found is not None:
                return True
    return False


def _pickle(value: object, limit: int) -> bytes:
    import cloudpickle

    target = _Bounded(limit)
    cloudpickle.dump(value, target)
    return target.getvalue()


def _variables(value: object) -> Iterator[tuple[str, object]]:
    """What travels because `value` does: captured variables, used globals, defaults, attributes, entries."""
    if isinstance(value, functools.partial):
        yield from (
            ("the function of the partial", value.func),
            *((f"argument {k!r}", v) for k, v in value.keywords.items()),
        )
        yield from ((f"argument {at}", v) for at, v in enumerate(value.args))
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not yet bound
                continue
        yield from ((name, value.__globals__[name]) for name in _names(value.__code__) if name in value.__globals__)
        yield from (value.__kwdefaults__ or {}).items()
        yield from ((f"a default of {value.__name__}", default) for default in value.__defaults__ or ())
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", entry) for key, entry in value.items())
    elif isinstance(value, type):
        yield from ((name, member) for name, member in vars(value).items() if isinstance(member, types.FunctionType))
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        yield from vars(value).items()


def _names(code: types.CodeType) -> list[str]:
    """Global names that the code uses, those of its inner functions included."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return [*code.co_names, *inner]


def _culprit(value: object, depth: int = _DEPTH) -> tuple[str, object] | None:
    """The innermost variable that cannot be pickled, as a path of names, and its value."""
    for name, member in _variables(value):
        if member is value or _travels(member):
            continue
        inner = _culprit(member, depth - 1) if depth else None
        return (f"{name} -> {inner[0]}", inner[1]) if inner else (name, member)
    return None


def _travels(value: object) -> bool:
    try:
        _pickle(value, LIMIT_BYTES)
    except _TooLarge:
        return True
    except Exception:  # whatever a user's object raises while it is pickled
        return False
    return True


def _roots(payload: Payload) -> tuple[tuple[str, object], ...]:
    return (
        ("train_loop_per_worker", payload.train_loop),
        ("train_loop_config", payload.config),
        ("RunConfig.stop", payload.stop),
    )


def _cannot_travel(payload: Payload, error: Exception) -> ConfigError:
    for root, value in _roots(payload):
        if value is None or _travels(value):
            continue
        found = _culprit(value)
        kind = type(found[1] if found else value)
        where = f"uses the variable {found[0]!r}" if found and root != "train_loop_config" else "is"
        in_config = found is not None and root == "train_loop_config"
        return ConfigError(
            f"{root}{found[0]}" if found is not None and in_config else root,
            found[1] if found is not None and in_config else value,
            f"it {where} of type {kind.__module__}.{kind.__qualname__}, which cannot be sent to the ranks ({error}): "
            "create it inside the training function",
        )
    return ConfigError("train_loop_per_worker", payload.train_loop, f"it cannot be sent to the ranks: {error}")


def _too_large(payload: Payload, limit: int) -> tuple[str, object, str]:
    name, size = _largest(payload)
    root = next(
        (root for root, value in _roots(payload) if value is not None and _size(value) >= size), "train_loop_per_worker"
    )
    held = f"more than {_mib(LIMIT_BYTES)}" if size > LIMIT_BYTES else _mib(size)
    advice = (
        f"{name} is {held}, and {_mib(limit)} is the most that is sent to the ranks: load it inside the "
        "training function, from a path in train_loop_config"
    )
    return root, dict(payload.config) if root == "train_loop_config" and payload.config else payload.train_loop, advice


def _largest(payload: Payload) -> tuple[str, int]:
    """Name and pickled size of the variable that weighs most."""
    best = ("the training function", 0)
    for root, value in _roots(payload):
        members = [*_variables(value)] if value is not None else []
        for name, member in members:
            size = _size(member)
            if size > best[1]:
                best = (f"{root}{name}" if name.startswith("[") else f"the variable {name!r}", size)
    return best


def _size(value: object) -> int:
    try:
        return len(_pickle(value, LIMIT_BYTES))
    except _TooLarge:
        return LIMIT_BYTES + 1
    except Exception:  # whatever a user's object raises while it is pickled
        return 0


def _mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / 1024:.0f} KiB"
