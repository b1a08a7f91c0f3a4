"""What modules make for themselves when they are imported, in TMPDIR mostly, and take away at exit: forks would have it
together, and the first rank that ends would take it from all others, and from those of the next attempt.

Asked by `fitness`, about the imports of a `parent`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from trainjob.session import short_exit
from trainjob.session.warm.unchanged import COARSE_NS, latest

_FEW = 100
"""What has more is no list of paths to take away."""
_ROWS, _TABLES = (list, tuple, set, frozenset, deque), (dict, defaultdict, OrderedDict)
_DEEP, _MOST = 8, 1000
"""How far from what is registered a path is looked for, and among how many values."""
_CLEANUP: Any = tempfile.TemporaryDirectory._cleanup  # type: ignore[attr-defined]
_REMOVERS = (shutil.rmtree, os.unlink, os.remove, os.rmdir, _CLEANUP)
_REMOVES = frozenset(("rmtree", "unlink", "remove", "rmdir", "removedirs"))
"""Who names one of these may take away what lies outside TMPDIR, too."""


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
        return next(filter(None, map(self._taken_by, self._all())), None)

    def taken_with(self, objects: Sequence[Any]) -> Optional[str]:
        """The same of what these do when they go, at exit at the latest."""
        ends = {kind: end for kind in set(map(type, objects)) for end in [_end_of(kind)] if end is not None}
        found = itertools.compress(objects, map(ends.__contains__, map(type, objects)))
        acts = (_Act(types.MethodType(ends[type(each)], each), (), {}) for each in found)
        return next(filter(None, map(self._taken_by, acts)), None)

    def _taken_by(self, act: _Act) -> Optional[str]:
        values = _reached(act)
        removes = any(map(_may_remove, [act.call, *values]))
        for path in filter(None, map(_path, values)):
            if (removes or (os.path.isabs(path) and _is_temporary(path))) and self._is_new(path):
                return path
        return None

    def undo(self) -> None:
        """In a process that is no use and ends without its exit: its own folders go."""
        for act in list(self._all()):
            # What was there before is not: a rank that trains meanwhile may have it.
            if _is_remover(act.call) and any(map(self._is_new, filter(None, map(_path, _reached(act))))):
                with contextlib.suppress(Exception):
                    act.call(*act.arguments, **act.named)

    def _all(self) -> Iterator[_Act]:
        yield from self._registered
        for each in _finalizers():
            found = each.peek() if each.atexit and each not in self._there else None
            if found is not None and not short_exit.takes_operators(found[1]):
                yield _Act(*found[1:])
        for each in _of_processes():
            if each not in self._there and each.still_active():
                yield _Act(each._callback, each._args, each._kwargs)

    def _is_new(self, path: str) -> bool:
        try:
            found = os.lstat(path)
            if latest(found.st_ctime_ns) < self._since:
                return False
            if not stat.S_ISDIR(found.st_mode):
                return True
            with os.scandir(path) as entries:  # an older folder in which something was made has a new time, too
                inside = [each.stat(follow_symlinks=False).st_ctime_ns for each in itertools.islice(entries, _FEW)]
            return all(latest(each) >= self._since for each in inside)
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


def _end_of(kind: type) -> Optional[types.FunctionType]:
    """What is called when one of this kind goes, if it is written in Python."""
    try:
        end = type.__getattribute__(kind, "__del__")
    except AttributeError:
        return None
    return end if type(end) is types.FunctionType else None


def _may_remove(value: Any) -> bool:
    kind = type(value)
    if kind is types.MethodType:
        return _is_remover(value) or _may_remove(value.__func__)
    if kind is types.FunctionType:
        return _is_remover(value) or not _REMOVES.isdisjoint((value.__name__, *_names(value.__code__)))
    return _is_remover(value)


def _finalizers() -> List[Any]:
    return list(getattr(weakref.finalize, "_registry", ()))


def _of_processes() -> List[Any]:
    """Of `multiprocessing`, which has a list of its own."""
    return list(getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {}).values())


def _reached(act: _Act) -> List[Any]:
    """What it works with, and what is to be found from there."""
    seen, found = {id(act.call)}, []
    near = [*_at_hand(act.call), *act.arguments, *act.named.values()]
    for _ in range(_DEEP):
        new = [each for each in near if id(each) not in seen][: _MOST - len(seen)]
        seen.update(map(id, new))
        found += new  # they stay: a value that is gone leaves its id to another
        near = [each for value in new if _path(value) is None for each in _at_hand(value)]
    return found


def _path(value: Any) -> Optional[str]:
    """What may be one."""
    path = os.fsdecode(value) if issubclass(type(value), (bytes, pathlib.PurePath)) else value
    return path if issubclass(type(path), str) else None


def _at_hand(value: Any) -> Iterator[Any]:
    """What the code of a function works with, and what an object holds. By its type and its own dictionary: an object
    may answer as it likes, or be made when it is asked.
    """
    kind = type(value)
    if kind is types.MethodType:
        yield value.__self__
        if type(value.__func__) is types.FunctionType:
            of = value.__self__
            yield from _of_function(value.__func__, of if issubclass(type(of), type) else type(of))
    elif kind is types.FunctionType:
        yield from _of_function(value)
    elif kind is types.GeneratorType:
        yield from () if value.gi_frame is None else value.gi_frame.f_locals.values()
    elif kind in (*_ROWS, *_TABLES):
        yield from () if len(value) > _FEW else value.values() if kind in _TABLES else value
    elif not issubclass(kind, (type, types.ModuleType)):
        if kind is functools.partial:
            yield from (value.func, *value.args, *value.keywords.values())
        with contextlib.suppress(AttributeError, TypeError):
            yield from object.__getattribute__(value, "__dict__").values()
        for slot in _slots(kind):
            with contextlib.suppress(AttributeError):  # it is empty
                yield slot.__get__(value)


def _slots(kind: type) -> Iterator[Any]:
    """Of classes that are written in Python."""
    for own in _spaces(kind):
        if "__slots__" in own:
            yield from (member for member in own.values() if type(member) is types.MemberDescriptorType)


def _of_function(function: types.FunctionType, owner: Optional[type] = None) -> Iterator[Any]:
    """`owner`: the class whose method it is."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for value in _named(function, owner):
        # What another package's function does is its own affair.
        if type(value) is not types.FunctionType or _package(value.__globals__) == _package(function.__globals__):
            yield value
    yield from _cells(function)


def _named(function: types.FunctionType, owner: Optional[type]) -> Iterator[Any]:
    """What it names of its module, and of its package's modules and classes that it names."""
    names, package = frozenset(_names(function.__code__)), _package(function.__globals__)
    found = [function.__globals__.get(name) for name in names]
    yield from found
    holders = [owner, *_cells(function), *found]
    for holder in holders:  # more come on the way
        spaces = _spaces(holder)
        if spaces and (holder is owner or _package(spaces[0]) == package):
            values = [own[name] for own in spaces for name in names if name in own]
            yield from values
            holders += (each for each in values if len(holders) < _MOST and not any(each is one for one in holders))


def _spaces(holder: Any) -> List[Mapping[str, Any]]:
    """Of a module or a class; nothing of anything else."""
    if issubclass(type(holder), types.ModuleType):
        return [object.__getattribute__(holder, "__dict__")]
    classes = type.__dict__["__mro__"].__get__(holder) if issubclass(type(holder), type) else ()
    return [type.__dict__["__dict__"].__get__(each) for each in classes]


def _package(space: Mapping[str, Any]) -> str:
    return str(space.get("__module__", space.get("__name__"))).partition(".")[0]


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _names(code: types.CodeType) -> Iterator[str]:
    """Also those of functions in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)
