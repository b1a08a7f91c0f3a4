"""Whether this process may be forked: one thread, nothing opened or taken away at exit, no child, the GPU untouched,
nothing begun that a fork does not have.

Every hang of a fork that is known came from a pool or a connection that the parent itself had begun. The counts are
taken after a trial fork: OpenBLAS ends its threads when its process forks, and starts them when it is used next.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import stat
import sys
import time
from typing import Dict, FrozenSet, List, Optional

from trainjob.session.warm import becoming
from trainjob.session.warm.exits import Acts
from trainjob.session.warm.seeds import Seeds

HARMLESS_THREADS = ("jemalloc_bg_thd",)
"""An allocator's (pyarrow brings it), which its own handlers take care of at a fork."""
UNFIT_MODULES = ("polars", "ray", "tensorflow")
"""They begin threads or clients as soon as they are imported, or do not survive a fork by their own word."""
_DRIVERS = {"libcuda.so": ("cuDeviceGetCount", 3), "libnvidia-ml.so": ("nvmlDeviceGetCount_v2", 1)}
"""NVIDIA's: how a file's name begins, what counts the GPUs, and what that answers where nothing has begun to use them
yet (CUDA_ERROR_NOT_INITIALIZED, NVML_ERROR_UNINITIALIZED). torch loads the first when it is imported, wherever there is
one, and uses it much later.
"""
_WAITS = "what was imported waits for processes itself (SIGCHLD), also for those that are forked here"
_BAD_FORK = 3
_TOOLS = 6
"""That sys.monitoring has room for."""
_TRIAL_S = 30.0


class Before:
    """What was open before the imports, and where."""

    def __init__(self) -> None:
        self.fds = _fds()
        self.shared = _shared_memory()
        self.folder = os.getcwd()
        self.acts = Acts()
        self.seeds = Seeds()
        self.timers = _timers()
        self.on_child = signal.getsignal(signal.SIGCHLD)


def unfit(before: Before) -> Optional[str]:
    """Why it must not be forked; None: it may. Forks a child on trial."""
    loaded = [name for name in UNFIT_MODULES if name in sys.modules]
    if loaded:
        return f"{loaded[0]} does not survive a fork"
    if _watched():
        return "what was imported traces what runs (coverage, a profiler, a debugger): it takes forks for one process"
    if _waits(before):
        return _WAITS
    code = _trial()
    if code is None:
        return f"a fork on trial did not come to an end in {_TRIAL_S:g} s"
    if code == _BAD_FORK:
        return "torch has asked for the GPU: a fork could not use it"
    if code != 0:
        return f"a fork on trial ended with {code}"
    return _left_behind(before) or unfit_now() or _touched_gpu()


def unfit_so_far(before: Before) -> Optional[str]:
    """The same in the middle of many imports: without a fork on trial where nothing calls for one."""
    loaded = any(name in sys.modules for name in UNFIT_MODULES)
    return unfit(before) if loaded or _left_behind(before) or unfit_now() else None


def _left_behind(before: Before) -> Optional[str]:
    if _shared_memory() - before.shared:
        return "what was imported made memory that its forks would share (multiprocessing.Lock() or its kin)"
    for fd, target in _fds().items():
        if fd not in before.fds and _is_shared(fd, target):
            return f"what was imported opened {target}"
    children = _children()
    if children:
        return f"what was imported started process {children[0]}"
    if _waits(before):
        return _WAITS
    if _timers() - before.timers:
        return "what was imported set a timer, which no fork has"
    seeded = before.seeds.given()
    if seeded is not None:
        return f"what was imported seeds random numbers ({seeded}), and forks are seeded anew"
    why = _takes(before.acts.taken_away())
    if why is not None:
        return why
    return None if os.getcwd() == before.folder else "what was imported changed the working folder"


def _takes(path: Optional[str]) -> Optional[str]:
    if path is None:
        return None
    return f"what was imported takes {path} away at exit: the first rank that ends would take it from all others"


def unfit_with_objects(before: Before) -> Optional[str]:
    """The same by what some objects do when they go. It takes a while: asked where there are such."""
    return _takes(before.acts.taken_with(gc.get_objects()))


def undo(before: Before) -> None:
    """What imports have begun ends, in a process that is of no use: another program may be executed in its place, which
    would take it for its own.
    """
    before.acts.undo()
    for child in map(int, _children()):
        with contextlib.suppress(OSError):  # a library waits for its own
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _waits(before: Before) -> bool:
    return signal.getsignal(signal.SIGCHLD) != before.on_child


def unfit_now() -> Optional[str]:
    """The part that is quick, for each fork: threads."""
    threads = [name for name in _threads() if name not in HARMLESS_THREADS]
    # Its own thread is among them.
    if len(threads) > 1:
        return f"what was imported started threads: {', '.join(threads[1:9])}"
    return None


def _watched() -> bool:
    """Whether something looks at each line or call."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tools = monitoring is not None and any(monitoring.get_tool(number) is not None for number in range(_TOOLS))
    return tools or sys.gettrace() is not None or sys.getprofile() is not None


def _trial() -> Optional[int]:
    """None: it hangs."""
    becoming.flush()
    child = os.fork()
    if child == 0:
        os._exit(_BAD_FORK if _in_bad_fork() else 0)
    # Whatever it waits for in vain, also in what libraries do first in a fork, this process does not wait with it.
    ends, rest = time.monotonic() + _TRIAL_S, 0.001
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(rest)
        rest = min(2 * rest, 0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _in_bad_fork() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


def _touched_gpu() -> Optional[str]:
    cuda, distributed = sys.modules.get("torch.cuda"), sys.modules.get("torch.distributed")
    if cuda is not None and cuda.is_initialized():
        return "CUDA is initialized"
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "a process group exists"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        text = maps.read()
    used = next((file for file in _DRIVERS if file in text and _is_in_use(file)), None)
    return None if used is None else f"the GPU's driver is in use ({used})"


def _is_in_use(file: str) -> bool:
    """What a driver that is loaded says itself; asking begins nothing."""
    import ctypes  # nothing that trains without a GPU pays for it

    counts, untouched = _DRIVERS[file]
    try:
        driver = ctypes.CDLL(f"{file}.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return bool(getattr(driver, counts)(ctypes.byref(ctypes.c_uint())) != untouched)
    except (OSError, AttributeError):
        return True  # loaded, and cannot be asked


def _threads() -> List[str]:
    """Names; this one's first."""
    names = []
    for task in sorted(os.listdir("/proc/self/task"), key=lambda each: (int(each) != os.getpid(), int(each))):
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
                names.append(file.read().strip())
        except OSError:
            pass  # it has just ended
    return names


def _children() -> List[str]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []  # a kernel without this file


def _timers() -> FrozenSet[int]:
    """Those that run, but for the one of processor time (`learned`)."""
    return frozenset(each for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL) if any(signal.getitimer(each)))


def _shared_memory() -> FrozenSet[str]:
    """Mappings that a fork and its parent both write to: of a lock in one that a rank held when it was killed all that
    come after it would wait for ever.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        rows = (line.split(" ", 2) for line in maps)
        return frozenset(row[0] for row in rows if row[1][1] == "w" and row[1][3] == "s")


def _fds() -> Dict[int, str]:
    found: Dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # the listing's own
    return found


def _is_shared(fd: int, target: str) -> bool:
    """Whether forks that have it too would disturb each other: anything but a file that is read (`offsets`)."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY or _is_locked(fd)
    return not stat.S_ISDIR(mode) and target not in ("/dev/null", "/dev/urandom")


def _is_locked(fd: int) -> bool:
    """The lock is this process's, or would be one of all forks together."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            return any(line.startswith("lock:") for line in file)
    except OSError:
        return False
