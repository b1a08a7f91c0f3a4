"""A rank that has ended its script, and all that Python runs at exit, ends at once.

Python then takes its modules apart, half a second of a processor once torch is imported, and the libraries themselves
another tenth: nobody sees anything of it, and whoever waits for the rank's end (the next attempt after an exception, a
change of size, the job's own end) waits for that. What of it a script can see is done here as Python does it: objects
of the script's own modules die, files are flushed, C's too. Where something else may happen at a process's exit (a
library that is not known to do nothing then, a tool that was loaded before the program) Python goes its own way.

Called by `rank` before whatever else registers something to be run at exit, so that this comes last.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import re
import sys
import types
import weakref
from typing import Any, Dict, Iterable, List, NoReturn, Optional

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
_LOADERS = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "PYTHONMALLOCSTATS")

_code: Optional[int] = None
_pid = 0


def register() -> None:
    """From now on, in this process alone."""
    global _pid
    if _pid == 0:
        atexit.register(_leave)
    _pid = os.getpid()


def here() -> None:
    """In a fork that is to be a rank: as `register` in its parent."""
    global _pid
    if _pid:
        _pid = os.getpid()


def with_code(code: int) -> None:
    """The script has ended, and the process is going to with this exit code. Without such a word Python goes its own
    way.
    """
    global _code
    _code = code


def _leave() -> None:
    if _code is None or os.getpid() != _pid or "torch" not in sys.modules or _doubt():
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:  # Python tells of it by an exit code of its own
        return
    _let_go()
    _flush()
    _end(_code)


def _doubt() -> bool:
    if sys.implementation.name != "cpython" or sys.flags.dev_mode or gc.get_debug():
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


def _let_go() -> None:
    """The script's own modules go as Python lets go of all: first their names, then what circles, then what they are
    still known for elsewhere.
    """
    left: List[weakref.ref[types.ModuleType]] = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and _is_own(name, module):
            left.append(weakref.ref(module))
            del sys.modules[name]
    module = None  # type: ignore[assignment]
    gc.collect()
    still = [found for found in (reference() for reference in reversed(left)) if found is not None]
    for found in still:
        _clear(found.__dict__)
    if still:
        gc.collect()


_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def _clear(names: Dict[str, object]) -> None:
    """Of objects: whatever they do when they go finds its code there."""
    for name, value in list(names.items()):
        if not issubclass(type(value), _CODE) and not name.startswith("__"):
            names[name] = None


_LIBRARY = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _is_own(name: str, module: types.ModuleType) -> bool:
    """Of the user's own code."""
    if name in ("__main__", "__mp_main__"):
        return True
    file = module.__dict__.get("__file__")
    return (
        isinstance(file, str)
        and not file.startswith(_LIBRARY)
        and "-packages/" not in file
        and not name.startswith("trainjob")
    )


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
