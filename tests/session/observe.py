"""What a program can see of itself and of how it was started, as one line of JSON: run as a rank's script, not a test.

`python observe.py [torch]`. Numbers of processes are named after whose they are, so that two runs can be compared.
"""

# The first lines: nothing that is imported below may open, start or change anything before it is looked at.
import os

FDS = {}
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue  # the listing's own
    FDS[name] = target.partition(":")[0]
TASKS = os.listdir("/proc/self/task")

import sys  # noqa: E402

MODULES = sorted(sys.modules)

import argparse  # noqa: E402
import asyncio  # noqa: E402
import atexit  # noqa: E402
import builtins  # noqa: E402
import concurrent.futures  # noqa: E402
import contextvars  # noqa: E402
import ctypes  # noqa: E402
import decimal  # noqa: E402
import faulthandler  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import logging  # noqa: E402
import multiprocessing  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

PR_GET_PDEATHSIG = 2


def named(number):
    return {os.getpid(): "self", os.getppid(): "agent", int(os.environ.get("TRAINJOB_AGENT_PID", 0)): "agent"}.get(
        number, "another"
    )


def stream(file):
    return {
        name: repr(getattr(file, name, None))
        for name in ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed")
    } | {
        "type": type(file).__name__,
        "buffer": type(file.buffer).__name__,
        "raw": type(getattr(file.buffer, "raw", file.buffer)).__name__,
        "seekable": file.seekable(),
        "tty": file.isatty(),
        "fd": file.fileno(),
        "kind": os.readlink(f"/proc/self/fd/{file.fileno()}").partition(":")[0],
    }


def death_signal():
    found = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
    return found.value


def masks():
    """Without the two signals that glibc keeps for itself: it handles one once there has been a thread."""
    found = status_lines("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")
    return {name: hex(int(mask, 16) & ~(0b11 << 31)) for name, mask in found.items()}


def status_lines(*names):
    with open("/proc/self/status") as file:
        return {line.split(":")[0]: line.split()[1] for line in file if line.split(":")[0] in names}


def proc(name):
    with open(f"/proc/self/{name}", "rb") as file:
        return re.sub(rf"(^|[=\0]){os.getppid()}(?=\0|$)", r"\1AGENT", file.read().decode())


def double(number):
    return 2 * number


def by_method(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(double, [1, 2])


def signals():
    found = {}
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        found[str(int(number))] = getattr(handler, "__name__", repr(handler))
    return found


def main_module():
    module = sys.modules["__main__"]
    return {
        "dict": module.__dict__ is globals(),
        "builtins": repr(type(__builtins__)),
        "names": sorted(name for name in globals() if name.startswith("__")),
        "file": __file__,
        "name": __name__,
        "package": repr(__package__),
        "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent],
        "loader": type(__loader__).__name__,
    }


class Item:
    """What a script pickles of its own."""

    def __eq__(self, other):
        return type(other) is Item


async def by_asyncio():
    asyncio.get_running_loop().slow_callback_duration = 600  # else -X dev tells of a machine that is busy
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode()


def handled():
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append((number, frame.f_code.co_name)))
    signal.raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    return heard


def seeded():
    random.seed(5)
    return random.random()


def logged():
    root = logging.getLogger()
    return {
        "root": [root.level, root.disabled, [repr(each) for each in (*root.handlers, *root.filters)]],
        "rest": [logging.root.manager.disable, logging.raiseExceptions, repr(logging.lastResort)],
        "class": [logging.getLoggerClass().__name__, logging.getLogRecordFactory().__name__],
    }


def prctls():
    """PR_GET_DUMPABLE, _KEEPCAPS, _TIMERSLACK, _CHILD_SUBREAPER, _NO_NEW_PRIVS, _THP_DISABLE."""
    found, libc = [], ctypes.CDLL(None)
    for number in (3, 7, 30, 37, 39, 42):
        told = ctypes.c_int(-1)
        found.append([libc.prctl(number, ctypes.byref(told) if number == 37 else 0, 0, 0, 0), told.value])
    return found


def started_again():
    """The same interpreter as a script starts it, with what it inherits."""
    script = "import json, os, sys; print(json.dumps([sys.path[1:], sys.argv, sorted(os.listdir('/proc/self/fd'))]))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout


def observed():
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    return {
        "fds": FDS,
        "threads of the kernel": len(TASKS),
        "modules": MODULES,
        "session": named(os.getsid(0)),
        "group": named(os.getpgid(0)),
        "parent": named(os.getppid()),
        "dies with": death_signal(),
        "signals": signals(),
        "signal masks": masks(),
        "name": status_lines("Name", "Umask"),
        "stdin": stream(sys.stdin),
        "stdout": stream(sys.stdout),
        "stderr": stream(sys.stderr),
        "the first streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "argv": sys.argv,
        "orig argv": getattr(sys, "orig_argv", None),
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "flags": repr(sys.flags),
        "options": [sys._xoptions, sys.warnoptions, sys.dont_write_bytecode],
        "path": sys.path,
        "finders": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.float_repr_style],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace() is None],
        "frames": len(inspect.stack()),
        "environ": {k: "AGENT" if v == str(os.getppid()) else v for k, v in sorted(os.environ.items())},
        "environ of C": [(libc.getenv(name) or b"").decode() for name in (b"RANK", b"TRAINJOB_ROOM", b"PATH")],
        "environ of proc": sorted(filter(None, proc("environ").split("\0"))),
        "command line of proc": proc("cmdline"),
        "cwd": os.getcwd(),
        "place": [os.nice(0), os.getuid(), os.getgid(), sorted(os.sched_getaffinity(0)), proc("oom_score_adj")],
        "rlimits": [resource.getrlimit(getattr(resource, n)) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")],
        "children's time": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
        "main": main_module(),
        "warnings": [repr(each) for each in warnings.filters],
        "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_debug()],
        "frozen": gc.get_freeze_count() > 0,
        "threads": [threading.active_count(), threading.current_thread() is threading.main_thread()],
        "main thread": [threading.main_thread().name, named(threading.main_thread().native_id)],
        "faulthandler": faulthandler.is_enabled(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()],
        "temporary": tempfile.gettempdir(),
        "start method": multiprocessing.get_start_method(),
        "multiprocessing": [multiprocessing.parent_process() is None, len(multiprocessing.active_children())],
        "processes": {method: by_method(method) for method in multiprocessing.get_all_start_methods()},
        "atexit": atexit._ncallbacks(),
        "atexit of threads": len(getattr(threading, "_threading_atexits", ())),
        "program": [argparse.ArgumentParser().prog, argparse.ArgumentParser().format_usage()],
        "source": [inspect.getsource(double), inspect.getsourcefile(Item), inspect.getmodule(Item).__name__],
        "pickled": [pickle.loads(pickle.dumps(Item())) == Item(), pickle.dumps(Item()).hex()],
        "handled": handled(),
        "timers": [signal.getitimer(each) for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "wakeup": signal.set_wakeup_fd(-1),
        "time": [time.tzname, time.timezone, time.daylight, os.environ.get("TZ")],
        "seeded": seeded(),
        "logging": logged(),
        "loggers": sorted(logging.root.manager.loggerDict),
        "decimal": repr(decimal.getcontext()),
        "context": len(contextvars.copy_context()),
        "builtins": sorted(name for name in dir(builtins) if "pybind11" not in name),  # an older torch leaves one
        "asyncio": [asyncio.run(by_asyncio()), type(asyncio.get_event_loop_policy()).__name__],
        "executor": list(concurrent.futures.ProcessPoolExecutor(1).map(double, [3])),
        "pool of threads": list(concurrent.futures.ThreadPoolExecutor(2).map(double, [3, 4])),
        "more hooks": [
            sys.unraisablehook is sys.__unraisablehook__,
            threading.excepthook is threading.__excepthook__,
            sys.getprofile() is None,
            sys.gettrace() is None,
            getattr(sys.breakpointhook, "__name__", None),
        ],
        "kernel": status_lines(
            "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Cpus_allowed"
        ),
        "prctl": prctls(),
        "scheduling": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, proc("coredump_filter")],
        "started again": started_again(),
        "a shell": subprocess.run("echo $0; umask; ulimit -a", shell=True, capture_output=True, text=True).stdout,
    }


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return at


def observed_of_torch():
    import torch
    import torch.utils.data

    loaders = {
        method: [
            batch.tolist()
            for batch in torch.utils.data.DataLoader(
                Numbers(), batch_size=2, num_workers=1, multiprocessing_context=method
            )
        ]
        for method in ("fork", "spawn")
    }
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    torch.manual_seed(5)
    torch.multiprocessing.set_sharing_strategy("file_system")
    by_files = [batch.tolist() for batch in torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    return {
        "by files": by_files,
        "seeded torch": [torch.rand(1).item(), torch.initial_seed()],
        "strategies": [
            torch.multiprocessing.get_sharing_strategy(),
            sorted(torch.multiprocessing.get_all_sharing_strategies()),
        ],
        "three threads": [torch.get_num_threads(), (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()],
        "torch settings": [
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            str(torch.get_default_device()),
            torch.backends.cudnn.benchmark,
            torch.backends.mkldnn.enabled,
            torch.get_printoptions() if hasattr(torch, "get_printoptions") else None,
        ],
        "loaders": loaders,
        "torch threads": [threads, torch.get_num_interop_threads()],
        "torch defaults": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "torch cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "torch modules": sorted(name for name in sys.modules if name.partition(".")[0] == "torch"),
    }


if __name__ == "__main__":
    found = observed()
    if "torch" in sys.argv:
        found.update(observed_of_torch())
    print(json.dumps(found), flush=True)
    atexit.register(print, "at exit")
    print("to stderr", file=sys.stderr)
    sys.stdout.write("without an end")
