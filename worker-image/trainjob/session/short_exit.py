"""A rank that has ended its script, and all that Python runs at exit, ends at once.

Python then takes its modules apart, half a second of a processor once torch is imported, and the libraries themselves
another tenth: nobody sees anything of it, and whoever waits for the rank's end (the next attempt after an exception, a
change of size, the job's own end) waits for that. What of it a script can see is done here as Python does it: objects
of the script's own modules die, files are flushed, C's too. Where something else may happen at a process's exit (a
library that is not known to do nothing then, a tool that was loaded before the program, an object that is still held
and does something when it goes, a thread in the script's own code) Python goes its own way.

Called by `rank` before whatever else registers something to be run at exit, so that this comes last.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import gc
import io
import os
import re
import sys
import types
import warnings
import weakref
from collections import deque
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Set

from trainjob.session import imported

_exit = os._exit
_MAPS = "/proc/self/maps"
_PACKAGES = re.compile(
    r"PIL|pillow|aiohttp|charset_normalizer|[0-9a-f]{20}__mypyc|cuda|frozenlist|functorch|google|hf_xet|markupsafe"
    r"|matplotlib|msgpack|multidict|numpy|nvidia|orjson|pandas|propcache|psutil|pydantic_core|regex|safetensors|scipy"
    r"|sklearn|scikit_learn|tokenizers|torch|torchaudio|torchvision|triton|xxhash|yaml|yarl|zstandard"
)
"""Of installed packages with libraries: those that leave nothing to be done at a process's exit."""
_SITE = re.compile(r"/(?:site|dist)-packages/(?P<name>\w+?)(?:\.libs|\.cpython[^/]*)?(?:/|\.so)")
_OF_PYTHON = re.compile(r"/lib/python3\.\d+/lib-dynload/")
_OF_SYSTEM = re.compile(
    r"(?:ld-linux[\w-]*|lib(?:c|m|dl|rt|util|pthread|resolv|nsl|crypt|z|bz2|lzma|ffi|uuid|expat|ssl|crypto|sqlite3|readline"
    r"|ncursesw?|tinfow?|panelw?|stdc\+\+|gcc_s|gomp|iomp5|gfortran|quadmath|numa|atomic|mpdec\+*|mpdec|nss_\w+|python3[\w.]*"
    r"|cuda|nvidia-\w+|mkl_\w+|openblas\w*|blas|lapack|cblas)(?:-[\d.]+)?)\.so[\d.]*"
)
_LOADERS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "PYTHONMALLOCSTATS",
    "PYTHONINSPECT",
)

_code: Optional[int] = None
_pid = 0
_looked_at: List[None] = []
"""The collector knows it, unless the script has frozen what there was (`gc.freeze`). To count what is frozen takes as
long as all else here.
"""


def register() -> None:
    """From now on, in this process alone."""
    global _pid
    if _pid == 0:
        atexit.register(_leave)
    _pid = os.getpid()


def here() -> None:
    """In a fork that is to be a rank: as `register` in its parent."""
    global _pid, _looked_at
    if _pid:
        _pid, _looked_at = os.getpid(), []


def undo_nothing() -> None:
    """In the process that ranks are forks of, when all is imported: torch takes its own operators away again at exit,
    one by one. In a fork, which touches all that for the first time then, it takes as long as half a restart.
    """
    for each in list(getattr(weakref.finalize, "_registry", ())):
        found = each.peek()
        if found is not None and (found[1].__module__, found[1].__qualname__) == ("torch.library", "_del_library"):
            each.atexit = False


def with_code(code: int) -> None:
    """The script has ended, and the process is going to with this exit code. Without such a word Python goes its own
    way.
    """
    global _code
    _code = code


def _leave() -> None:
    _leave_now()
    if not _is_frozen(gc.get_objects()):
        gc.unfreeze()  # of a fork's parent: what its libraries hold of the script could not be let go of


def _is_frozen(objects: List[Any]) -> bool:
    """By the script. `objects`: that the collector knows."""
    return not any(each is _looked_at for each in objects)


def _leave_now() -> None:
    """Unless Python is to go its own way."""
    if _code is None or os.getpid() != _pid or "torch" not in sys.modules or _doubt():
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except Exception:  # Python tells of it by an exit code of its own
        return
    if _is_run_by_others():
        return
    _let_go()
    if _is_held():
        return
    _flush()
    _end(_code)


def _doubt() -> bool:
    flags = sys.flags
    if sys.implementation.name != "cpython" or flags.dev_mode or flags.verbose or flags.inspect or gc.get_debug():
        return True
    if _warns_of_open_files():
        return True
    if any(os.environ.get(name) for name in _LOADERS):
        return True
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            return not all(map(is_known, {line.rstrip("\n").partition("/")[2] for line in maps if ".so" in line}))
    except OSError:
        return True


def is_known(path: str) -> bool:
    """Whether the library of this path leaves nothing to be done at a process's exit. Without the slash in front."""
    path = f"/{path}"
    site = _SITE.search(path)
    if site is not None:
        return bool(_PACKAGES.fullmatch(site["name"]))
    return bool(_OF_PYTHON.search(path) or _OF_SYSTEM.fullmatch(os.path.basename(path)))


def _warns_of_open_files() -> bool:
    """Python does at its exit, of whoever holds them."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(ResourceWarning, category) and not (message or module or line):
            return action != "ignore"
    return False


def _is_run_by_others() -> bool:
    """A daemon thread is in the script's own code: Python stops it before it takes away what that works with."""
    own = {id(sys.modules[name].__dict__) for name in _own_names()}
    for thread, top in sys._current_frames().items():
        frame: Optional[types.FrameType] = top if thread != _thread.get_ident() else None
        while frame is not None:
            if id(frame.f_globals) in own:
                return True
            frame = frame.f_back
    return False


_GONE = (
    "argv", "last_exc", "last_traceback", "last_type", "last_value", "meta_path", "path", "path_hooks",
    "path_importer_cache", "ps1", "ps2",
)  # fmt: skip
"""Of `sys`: what Python takes away before the modules."""

_COLLECT = compile("collect()", "sys", "eval")
_DROP = compile("consume(map(drop, names))", "sys", "eval")
"""As if no code of Python ran: so warnings name the place that they name at an exit."""


def _let_go() -> None:
    """The script's own modules go as Python lets go of all: first what circles already, then their names, then what
    circles now, then what they are still known for elsewhere.
    """
    modules: Dict[str, Any] = sys.modules
    names = _own_names()
    left: List[weakref.ref[types.ModuleType]] = [weakref.ref(modules[name]) for name in names]
    outside = {
        "__name__": "sys", "collect": gc.collect, "consume": deque[Any](maxlen=0).extend, "drop": modules.pop,
        "names": names,
    }  # fmt: skip
    eval(_COLLECT, outside)
    for name in _GONE:
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    told, modules["warnings"] = modules.get("warnings"), None  # there is none any more at this point of an exit
    eval(_DROP, outside)
    eval(_COLLECT, outside)
    still = [found for found in (reference() for reference in reversed(left)) if found is not None]
    for found in still:
        _clear(found.__dict__)
    if still:
        eval(_COLLECT, outside)
    modules["warnings"] = told


_RUN = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_FINISHED = {"sqlite3.Connection", "_dbm.dbm", "_gdbm.gdbm"}
"""In C, and with something to write when they go."""
_UNSEEN = {
    "multiprocessing.connection.Connection",
    "multiprocessing.resource_tracker.ResourceTracker",
    "joblib.externals.loky.backend.resource_tracker.ResourceTracker",
    "socket.SocketIO",
    "socket.socket",
    "ssl.SSLSocket",
    "subprocess.Popen",
    "torch.multiprocessing.reductions.StorageWeakRef",
}
"""What these do when they go, the end of a process does too."""


def _is_held() -> bool:
    """Whether there is an object left (a library holds it, a signal's handler, `atexit`) that does something when it
    goes.
    """
    objects = gc.get_objects()
    if _is_frozen(objects):
        return True  # they cannot be looked at
    kinds: Set[type] = set(map(type, objects))
    if any(map(_does_something, kinds)):
        return True
    if kinds.isdisjoint(_RUN):
        return False
    return any(type(each) in _RUN and not _is_librarys(_code_of(each).co_filename) for each in objects)


def _does_something(kind: type) -> bool:
    try:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _FINISHED:
            return True
        quiet = kind in _RUN or kind.__module__ == "_io" or name in _UNSEEN
        return not quiet and any("__del__" in each.__dict__ for each in kind.__mro__)
    except Exception:  # a class of the user's may answer as it likes
        return True


def _code_of(running: Any) -> types.CodeType:
    names = ("gi_code", "cr_code", "ag_code")
    found: types.CodeType = next(getattr(running, name) for name in names if hasattr(running, name))
    return found


_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def _clear(names: Dict[str, object]) -> None:
    """Of objects: whatever they do when they go finds its code there."""
    for name, value in list(names.items()):
        if not issubclass(type(value), _CODE) and not name.startswith("__"):
            names[name] = None


_LIBRARY = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


_MAIN = ("__main__", "__mp_main__")


def _own_names() -> List[str]:
    """Of the user's own modules. What a fork's parent has imported is none, and is not touched: pages are shared."""
    return [
        name
        for name, module in list(sys.modules.items())
        if (name in _MAIN or name not in imported.ahead) and _is_own(name, module)
    ]


def _is_own(name: str, module: object) -> bool:
    """Of the user's own code."""
    if not isinstance(module, types.ModuleType):
        return False
    if name in _MAIN:
        return True
    file = module.__dict__.get("__file__")
    return isinstance(file, str) and not _is_librarys(file) and not name.startswith("trainjob")


def _is_librarys(file: str) -> bool:
    return file.startswith((*_LIBRARY, "<frozen ")) or "-packages/" in file


_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def _flush() -> None:
    """Files that somebody has left open: what was written is in them."""
    found = [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]
    _flushed(each for each in found if issubclass(type(each), io.TextIOWrapper))
    _flushed(found)
    # In a fork the collector does not know these: they were there before.
    _flushed(each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if each is not None)
    ctypes.CDLL(None).fflush(None)


def _flushed(files: Iterable[Any]) -> None:
    for file in files:
        try:
            if not file.closed:
                file.flush()
        except Exception:  # as where Python closes a file that nobody has any more
            continue


def _end(code: int) -> NoReturn:
    _exit(code & 0xFF)
