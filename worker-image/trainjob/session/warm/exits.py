"""What modules make for themselves when they are imported, in TMPDIR mostly, and take away at exit: forks would have it
together, and the first rank that ends would take it from all others, and from those of the next attempt.

Asked by `fitness`, about the imports of a `parent`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import sys
import tempfile
import time
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional

from trainjob.session.warm.unchanged import COARSE_NS

_FEW = 8
"""What has more is no list of paths to take away: torch's finalizers have sets of thousands of names."""
_ROWS, _TABLES = (list, tuple, set, frozenset, deque), (dict, defaultdict, OrderedDict)
_DEEP, _MOST = 4, 1000
"""How far from what is registered a path is looked for, and among how many values."""
_CLEANUP: Any = tempfile.TemporaryDirectory._cleanup  # type: ignore[attr-defined]
_REMOVERS = (shutil.rmtree, os.unlink, os.remove, os.rmdir, _CLEANUP)


class _Act(NamedTuple):
    call: Any
    arguments: Iterable[Any]
    named: Mapping[str, Any]


class Acts:
    """What is to be done at exit, of all that was registered since this was made."""

    def __init__(self) -> None:
        self._since = time.time_ns() - COARSE_NS
        self._there = frozenset((*_finalizers(), *_of_processes()))
        self._registered: List[_Act] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of the imports meanwhile: Python does not tell what is registered."""
        module: Any = atexit
        plain = module.register
        noted: Optional[List[_Act]] = self._registered

        def register(call: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
            if noted is not None:
                noted.append(_Act(call, arguments, named))
            plain(call, *arguments, **named)
            return call

        module.register = register
        try:
            yield
        finally:
            module.register, noted = plain, None  # a module may have it under a name of its own, and call it later

    def taken_away(self) -> Optional[str]:
        """A path that one of them has, of what has been made since; None: none has such a one."""
        for act in self._all():
            removes = _is_remover(act.call)
            for path in _paths(act):
                if self._is_new(path) and (removes or _is_temporary(path)):
                    return path
        return None

    def undo(self) -> None:
        """In a process that is no use and ends without its exit: its own folders go."""
        for act in list(self._all()):
            if _is_remover(act.call):
                with contextlib.suppress(Exception):
                    act.call(*act.arguments, **act.named)

    def _all(self) -> Iterator[_Act]:
        yield from self._registered
        for each in _finalizers():
            found = each.peek() if each.atexit and each not in self._there else None
            if found is not None:
                yield _Act(*found[1:])
        for each in _of_processes():
            if each not in self._there and each.still_active():
                yield _Act(each._callback, each._args, each._kwargs)

    def _is_new(self, path: str) -> bool:
        try:
            return os.lstat(path).st_ctime_ns >= self._since
        except (OSError, ValueError):
            return False


def _is_temporary(path: str) -> bool:
    try:
        folder = os.path.realpath(tempfile.gettempdir())
    except OSError:
        return False  # there is no such folder
    return os.path.realpath(path).startswith(os.path.join(folder, ""))


def _is_remover(call: Any) -> bool:
    return type(call) in map(type, _REMOVERS) and call in _REMOVERS


def _finalizers() -> List[Any]:
    return list(getattr(weakref.finalize, "_registry", ()))


def _of_processes() -> List[Any]:
    """Of `multiprocessing`, which has a list of its own."""
    return list(getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {}).values())


def _paths(act: _Act) -> Iterator[str]:
    """Absolute ones."""
    seen = {id(act.call)}
    near = [*_at_hand(act.call), *act.arguments, *act.named.values()]
    for _ in range(_DEEP):
        new = [each for each in near if id(each) not in seen][: _MOST - len(seen)]
        seen.update(map(id, new))
        near = []
        for value in new:
            path = os.fsdecode(value) if issubclass(type(value), (bytes, pathlib.PurePath)) else value
            if not issubclass(type(path), str):
                near += _at_hand(value)
            elif path.startswith(os.sep):
                yield path


def _at_hand(value: Any) -> Iterator[Any]:
    """What the code of a function works with, and what an object holds. By its type and its own dictionary: an object
    may answer as it likes, or be made when it is asked.
    """
    kind = type(value)
    if kind is types.MethodType:
        yield value.__self__
        yield from _at_hand(value.__func__)
    elif kind is types.FunctionType:
        yield from _of_function(value)
    elif kind in (*_ROWS, *_TABLES):
        yield from () if len(value) > _FEW else value.values() if kind in _TABLES else value
    elif not issubclass(kind, (type, types.ModuleType)):
        if kind is functools.partial:
            yield from (value.func, *value.args, *value.keywords.values())
        with contextlib.suppress(AttributeError, TypeError):
            yield from object.__getattribute__(value, "__dict__").values()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    names = function.__globals__
    for name in _names(function.__code__):
        value = names.get(name)
        # What another module's function does is its own affair.
        if type(value) is not types.FunctionType or value.__globals__ is names:
            yield value
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _names(code: types.CodeType) -> Iterator[str]:
    """Also those of functions in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)
