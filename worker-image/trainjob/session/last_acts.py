"""Which objects do something when they go: what a process leaves undone that ends without taking itself apart.

Asked by `short_exit`, with the objects that the collector knows. Standard library only; looks, and changes nothing.
"""

from __future__ import annotations

import dis
import sys
import types
import weakref
from itertools import chain, compress
from typing import Any, Callable, Iterator, List, Optional, Set

_RUN = (types.CoroutineType, types.AsyncGeneratorType)
_FINISHED = {"sqlite3.Connection", "_dbm.dbm", "_gdbm.gdbm"}
"""In C, and with something to write when they go."""
_UNSEEN = {
    "multiprocessing.connection.Connection",
    "multiprocessing.resource_tracker.ResourceTracker",
    "joblib.externals.loky.backend.resource_tracker.ResourceTracker",
    "_socket.socket",
    "socket.SocketIO",
    "socket.socket",
    "ssl.SSLSocket",
    "subprocess.Popen",
    "torch.multiprocessing.reductions.StorageWeakRef",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
}
"""What these do when they go, the end of a process does too."""
_PROTECTS = {"PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"}
"""Code with one of these may go on where its generator is closed."""
_GROUPS = "torch.distributed.distributed_c10d"
_FILE_STORE = "FileStore"
_DEEPEST = 16


def is_any_left(objects: List[Any], below: Optional[str] = None) -> bool:
    """Whether one of them does something when it goes. `below`: a folder; generators of code in it do not count."""
    kinds: Set[type] = set(map(type, objects))
    if any(map(_does_something, kinds)) or not kinds.isdisjoint(_RUN):
        return True
    running = _of(objects, {types.GeneratorType}) if types.GeneratorType in kinds else iter(())
    return any(_goes_on(each) for each in running if below is None or not each.gi_code.co_filename.startswith(below))


def is_own_left(objects: List[Any], is_librarys: Callable[[str], bool]) -> bool:
    """Whether one of them does so by code of the user's, which may look at what Python has taken away by then: modules,
    builtins, the frames that call it. `is_librarys`: of a file's name.
    """

    kinds: Set[type] = set(map(type, objects))
    ends = chain.from_iterable(map(_codes_of_end, kinds))
    later = _of(objects, {types.GeneratorType, *filter(_is_weak, kinds)})
    return any(code is not None and not is_librarys(code.co_filename) for code in chain(ends, map(_code_later, later)))


def _code_later(each: Any) -> Optional[types.CodeType]:
    """That runs when the generator goes on, or when what is referred to is gone."""
    if type(each) is types.GeneratorType:
        return each.gi_code if _goes_on(each) else None
    return getattr(each.__callback__, "__code__", None)


def _of(objects: List[Any], kinds: Set[type]) -> Iterator[Any]:
    """Those that are of just these kinds. There may be a million objects, and some answer by doing something."""
    return compress(objects, map(kinds.__contains__, map(type, objects)))


def _is_weak(kind: type) -> bool:
    return issubclass(kind, weakref.ref)


def is_store_left() -> bool:
    """Whether a group of torch's has met in a file, which it removes when it goes: the next attempt could not meet
    there.
    """
    world = getattr(sys.modules.get(_GROUPS), "_world", None)
    try:
        return any(_is_in_file(store) for _, store in list(getattr(world, "pg_map", {}).values()))
    except Exception:  # another torch
        return True


def _is_in_file(store: Any) -> bool:
    for _ in range(_DEEPEST):
        if type(store).__name__ == _FILE_STORE:
            return True
        store = getattr(store, "underlying_store", None)
    return False


def _does_something(kind: type) -> bool:
    try:
        names = {_name(each) for each in kind.__mro__}
        if names & _FINISHED:
            return True
        quiet = kind is types.GeneratorType or kind.__module__ == "_io" or _name(kind) in _UNSEEN
        return not quiet and any("__del__" in each.__dict__ for each in kind.__mro__)
    except Exception:  # a class of the user's may answer as it likes
        return True


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _codes_of_end(kind: type) -> Iterator[types.CodeType]:
    for each in type.__dict__["__mro__"].__get__(kind):
        code = getattr(type.__dict__["__dict__"].__get__(each).get("__del__"), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _goes_on(running: Any) -> bool:
    """A generator that has begun, and has not ended, may do something more when it is closed."""
    if running.gi_frame is None:
        return False
    has_begun = getattr(running, "gi_suspended", running.gi_frame.f_lasti >= 0)  # Python 3.11 counts otherwise
    return has_begun and any(each.opname in _PROTECTS for each in dis.get_instructions(running.gi_code))
