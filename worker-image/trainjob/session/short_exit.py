"""A rank that has ended its script, and all that Python runs at exit, ends at once.

Python then takes its modules apart, half a second of a processor once torch is imported, and the libraries themselves
another tenth: nobody sees anything of it, and whoever waits for the rank's end (the next attempt after an exception, a
change of size, the job's own end) waits for that. What of it a script can see is done here as Python does it: objects
of the script's own modules die, files are flushed, C's too. Where something else may happen at a process's exit (a
library that is not known to do nothing then, a tool that was loaded before the program, an object of a class of the
script's that does something when it goes, one that is still held, a thread that may come to the script's own code)
Python goes its own way.

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
import signal
import sys
import types
import warnings
import weakref
from collections import deque
from typing import Any, Dict, Iterable, List, NoReturn, Optional

from trainjob.session import imported, last_acts

_exit = os._exit
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
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
    r"(?:ld(?:-linux[\w-]*)?|lib(?:c|m|dl|rt|util|pthread|resolv|nsl|crypt|z|bz2|lzma|ffi|uuid|expat|ssl|crypto|sqlite3"
    r"|readline|ncursesw?|tinfow?|panelw?|stdc\+\+|gcc_s|gomp|gfortran|quadmath|numa|atomic|mpdec\+*|mpdec|nss_\w+"
    r"|cuda|nvidia-\w+|blas|lapack|cblas))(?:-[\d.-]+\.so[\d.]*|\.so\.[\d.]+)"
    r"|lib(?:iomp5|python3[\w.]*|mkl_\w+|openblas\w*)(?:-[\d.]+)?\.so[\d.]*"
)
"""With a version, as the system has it: a libutil.so is somebody's own."""
_LOADERS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_DEBUG",
    "LD_PROFILE",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "PYTHONMALLOCSTATS",
    "PYTHONINSPECT",
)

_code: Optional[int] = None
_pid = 0
_acts_ahead = False
"""What this process's parent has imported does something when it goes. A fork's collector does not know that."""
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


def undo_nothing() -> bool:
    """In the process that ranks are forks of, when all is imported: torch takes its own operators away again at exit,
    one by one. In a fork, which touches all that for the first time then, it takes as long as half a restart. Whether
    there is an object that does something when it goes.
    """
    global _acts_ahead
    _acts_ahead = last_acts.is_any_left(gc.get_objects(), below=_PACKAGE)  # what this process is amid of ends before
    for each in list(getattr(weakref.finalize, "_registry", ())):
        found = each.peek()
        if found is not None and takes_operators(found[1]):
            each.atexit = False
    return _acts_ahead


def takes_operators(call: Any) -> bool:
    """Whether this takes torch's operators away, and nothing else: there are hundreds."""
    return type(call) is types.FunctionType and (call.__module__, call.__qualname__) == (
        "torch.library",
        "_del_library",
    )


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
    if _is_run_by_others() or last_acts.is_own_left(gc.get_objects(), is_librarys):
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
    if sys.gettrace() is not None or sys.getprofile() is not None or gc.callbacks:
        return True  # they would be called of what is done here
    if _warns_of_open_files() or last_acts.is_store_left():
        return True
    if any(os.environ.get(name) for name in _LOADERS):
        return True
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            return not all(map(is_known, {line.rstrip("\n").partition("/")[2] for line in maps if _is_library(line)}))
    except OSError:
        return True


def _is_library(line: str) -> bool:
    """A file that is mapped, whatever its name, and may run; not the program itself."""
    if ".so" in line:
        return True
    _, rights, _, _, _, *path = line.split(None, 5)
    return "x" in rights and bool(path) and path[0].startswith("/") and path[0].rstrip("\n") != _PROGRAM


_PROGRAM = os.path.realpath("/proc/self/exe")


def is_known(path: str) -> bool:
    """Whether the library of this path leaves nothing to be done at a process's exit. Without the slash in front."""
    path = f"/{path}"
    site = _SITE.search(path)
    if site is not None:
        return bool(_PACKAGES.fullmatch(site["name"]))
    return bool(_OF_PYTHON.search(path) or _OF_SYSTEM.fullmatch(os.path.basename(path)))


def _warns_of_open_files() -> bool:
    """Python does at its exit, of whoever holds them: of some at least."""
    for action, message, category, module, line in warnings.filters:
        if not issubclass(ResourceWarning, category):
            continue
        if action != "ignore":
            return True
        if not (message or module or line):
            return False
    return False


_HARMLESS_THREADS = (
    _PACKAGE,
    os.path.join("multiprocessing", "queues.py"),
    os.path.join("torch", "utils", "data", "_utils", "pin_memory.py"),
)
"""Of ours, of a queue, of a DataLoader: in the code of these they wait, and call nobody else's."""


def _is_run_by_others() -> bool:
    """A daemon thread is in the script's own code, or may come to it: Python stops it before it takes away what that
    works with.
    """
    own = {id(sys.modules[name].__dict__) for name in _own_names()}
    for thread, top in sys._current_frames().items():
        frame: Optional[types.FrameType] = top if thread != _thread.get_ident() else None
        is_harmless = frame is None
        while frame is not None:
            if id(frame.f_globals) in own:
                return True
            file = frame.f_code.co_filename
            is_harmless = is_harmless or file.startswith(_HARMLESS_THREADS[0]) or file.endswith(_HARMLESS_THREADS[1:])
            frame = frame.f_back
        if not is_harmless:
            return True
    return False


_GONE = (
    "argv", "last_exc", "last_traceback", "last_type", "last_value", "meta_path", "path", "path_hooks",
    "path_importer_cache", "ps1", "ps2",
)  # fmt: skip
"""Of `sys`: what Python takes away before the modules."""


def _of_nowhere(text: str) -> types.CodeType:
    code = compile(text, "sys", "eval")
    return code if sys.version_info < (3, 13) else code.replace(co_filename="<sys>", co_firstlineno=0)


_FINALIZING = _of_nowhere("lambda: True")
_COLLECT = _of_nowhere("collect()")
_DROP = _of_nowhere("consume(map(drop, names))")
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
    sys.is_finalizing = eval(_FINALIZING)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    eval(_COLLECT, outside)
    for name in _GONE:
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    told, modules["warnings"] = modules.get("warnings"), None  # there is none any more at this point of an exit
    eval(_DROP, outside)
    kept = dict(modules)
    modules.clear()
    eval(_COLLECT, outside)
    still = [found for found in (reference() for reference in reversed(left)) if found is not None]
    for found in still:
        _clear(found.__dict__)
    if still:
        eval(_COLLECT, outside)
    modules.update(kept)
    modules["warnings"] = told


def _is_held() -> bool:
    """Whether there is an object left (a library holds it, a signal's handler, `atexit`) that does something when it
    goes.
    """
    objects = gc.get_objects()
    return _acts_ahead or _is_frozen(objects) or last_acts.is_any_left(objects)  # what is frozen cannot be looked at


_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def _clear(names: Dict[str, object]) -> None:
    """Of objects: whatever they do when they go finds its code there."""
    for name, value in list(names.items()):
        if not issubclass(type(value), _CODE) and not name.startswith("__"):
            names[name] = None


_OURS = ("trainjob", "trainjob_api", "trainjob_operator")
_LIBRARY = tuple(
    os.path.join(folder, "")
    for folder in (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)


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
    return isinstance(file, str) and not is_librarys(file) and name.partition(".")[0] not in _OURS


def is_librarys(file: str) -> bool:
    """Whether code of this file is a library's, not the user's."""
    return file.startswith((*_LIBRARY, "<frozen ")) or "/site-packages/" in file or "/dist-packages/" in file


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
