"""What modules make for themselves in TMPDIR when they are imported, and take away at exit: forks would have it
together, and the first rank that ends would take it from all others, and from those of the next attempt.

Asked by `fitness`, about the imports of a `parent`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import tempfile
import time
import types
import weakref
from typing import Any, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional

from trainjob.session.warm.unchanged import COARSE_NS

_FEW = 8
"""What has more is no list of paths to take away: torch's finalizers have sets of thousands of names."""


class _Act(NamedTuple):
    call: Any
    arguments: Iterable[Any]
    named: Mapping[str, Any]


class Acts:
    """What is to be done at exit, of all that was registered since this was made."""

    def __init__(self) -> None:
        self._since = time.time_ns() - COARSE_NS
        self._there = frozenset(_finalizers())
        self._registered: List[_Act] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of the imports meanwhile: Python does not tell what is registered."""
        module: Any = atexit
        plain = module.register

        def register(call: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
            self._registered.append(_Act(call, arguments, named))
            plain(call, *arguments, **named)
            return call

        module.register = register
        try:
            yield
        finally:
            module.register = plain

    def taken_away(self) -> Optional[str]:
        """A path that one of them has, of what has been made since; None: none has such a one."""
        paths = (path for act in self._all() for path in _paths(act))
        return next((path for path in paths if self._is_new(path) and _is_temporary(path)), None)

    def undo(self) -> None:
        """In a process that is no use and ends without its exit: its own folders go."""
        for each in _finalizers():
            found = each.peek() if each not in self._there else None
            if found is not None and found[1] == tempfile.TemporaryDirectory._cleanup:  # type: ignore[attr-defined]
                with contextlib.suppress(Exception):
                    each()

    def _all(self) -> Iterator[_Act]:
        yield from self._registered
        for each in _finalizers():
            found = each.peek() if each.atexit and each not in self._there else None
            if found is not None:
                yield _Act(*found[1:])

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


def _finalizers() -> List[Any]:
    return list(getattr(weakref.finalize, "_registry", ()))


def _paths(act: _Act) -> Iterator[str]:
    """Absolute ones."""
    for each in (*_seen_by(act.call), *act.arguments, *act.named.values()):
        many = isinstance(each, (list, tuple, set, frozenset)) and len(each) <= _FEW
        for value in each if many else (each,):
            path = value.name if isinstance(value, tempfile.TemporaryDirectory) else value
            if isinstance(path, (bytes, os.PathLike)):
                path = os.fsdecode(path)
            if isinstance(path, str) and path.startswith(os.sep):
                yield path


def _seen_by(call: Any) -> Iterator[Any]:
    """What the code of a function has at hand."""
    if isinstance(call, functools.partial):
        yield from (*call.args, *call.keywords.values(), *_seen_by(call.func))
    if isinstance(call, types.MethodType):
        yield call.__self__
        call = call.__func__
    if isinstance(call, types.FunctionType):
        yield from call.__defaults__ or ()
        names = call.__code__.co_names
        yield from (call.__globals__[name] for name in names if name in call.__globals__)
        for cell in call.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield cell.cell_contents
