"""Gloo's threads are given the time to finish what they have begun, before what they work for goes away.

A collective's own thread drops what the collective held after the call that waited for it has returned: tensors, and
what torch keeps per thread. It needs the GIL for what of that belongs to Python. Torch, however, ends these threads
with the GIL held where a DDP model is the last that holds a destroyed group: the two wait for each other for ever. (In
forks it is: where torch.distributed.nn is imported after a group was made, defaults of its functions hold that one for
good.) And a thread that asks for the GIL of an interpreter at its exit ends the process by SIGABRT, after all work was
done. So before a group is destroyed, and at exit, this process sleeps until each of these threads does.

Called by `rank` at boot, and by `link` in a rank that a launcher started; imports nothing of torch. Must not raise.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import types
from typing import Any, Callable, Dict, NamedTuple, Optional

from trainjob.session import flight_recorder
from trainjob.session.on_import import on_import

MODULE = "torch.distributed.distributed_c10d"
_DESTROY = "destroy_process_group"
_THREAD = b"pt_gloo_runloop"
"""What torch calls each thread that runs collectives, from 2.11 on."""
_LOOK_S = 0.01
"""Twice as long as a thread waits for the GIL before it asks for it once more, which is seen."""
_LIMIT_S = 5.0
"""A thread that works longer is at a collective that nobody waited for, or at a destructor of the user's."""
_UNNAMED_LOOKS = 5
"""Where they cannot be told from others without a name of their own: so many looks in a row all these must be idle."""
_LOCK = {"x86_64": b"202", "aarch64": b"98"}.get(os.uname().machine)
"""The system call in which a thread waits for a lock, that of the GIL too."""
_TASKS = "/proc/self/task"


class Look(NamedTuple):
    """A thread's state, as the kernel's letter, and how often it has left a processor."""

    state: bytes
    switches: int


_registered = False
_in_vain = False
"""One without a name runs for ever here: it is none of gloo's."""


def let_finish() -> None:
    """From now on, in this process and its forks. To be called before whatever registers something to be run at exit,
    which may use a group yet.
    """
    global _registered
    if not _registered:
        _registered = True
        atexit.register(settle)
        on_import(MODULE, _change)


def idle(before: Optional[Dict[str, Look]], now: Dict[str, Look]) -> bool:
    """Whether all threads slept from one look to the next. One that waits for the GIL wakes in between; one that waits
    for another of them to drop a lock does not, but that one does.
    """
    return before == now and all(look.state == b"S" for look in now.values())


def settle(tasks: str = _TASKS, sleep: Callable[[float], None] = time.sleep) -> None:
    """Returns once gloo's threads are idle. `tasks`: the folder of this process's threads."""
    if MODULE not in sys.modules:
        return
    before, until = None, time.monotonic() + _LIMIT_S
    while True:
        now = _look(tasks)
        if now is None:
            if _has_gloo():
                _settle_unnamed(tasks, sleep)
            return
        if idle(before, now) or time.monotonic() > until:
            return
        before = now
        sleep(_LOOK_S)


def _settle_unnamed(tasks: str, sleep: Callable[[float], None]) -> None:
    """The same for those of an older torch."""
    global _in_vain
    before, quiet, until = _unnamed(tasks), 0, time.monotonic() + _LIMIT_S
    while quiet < _UNNAMED_LOOKS:
        sleep(_LOOK_S)
        now = {} if _in_vain else _unnamed(tasks)
        quiet = quiet + 1 if _in_vain or idle(before, now) else 0
        before, _in_vain = now, _in_vain or time.monotonic() > until


def _unnamed(tasks: str) -> Dict[str, Look]:
    """The threads that are not Python's and have the name that their process gave them, but for those that wait for
    something else than a lock: a socket, a clock.
    """
    # One of gloo's that has asked Python for its thread is told as a thread of Python's, too.
    of_python = {str(each.native_id) for each in threading.enumerate() if not isinstance(each, threading._DummyThread)}
    of_python.add(str(os.getpid()))  # in the child of a fork Python knows it by its number in the parent
    try:
        name = _name(f"{tasks}/{os.getpid()}")
        looks = {each: _of_name(name, f"{tasks}/{each}") for each in os.listdir(tasks) if each not in of_python}
    except (OSError, ValueError, KeyError):
        return {}
    return {task: look for task, look in looks.items() if look is not None}


def _of_name(name: Optional[bytes], task: str) -> Optional[Look]:
    look = _status(task) if _name(task) == name else None
    if look is None or look.state != b"S":
        return look
    call = _call(task)
    if call is None:
        return Look(look.state, 0)  # it may be at a socket, and wake now and then
    return look if call == _LOCK else None


def _call(task: str) -> Optional[bytes]:
    """The system call that it waits in, by its number; None: nobody knows it."""
    try:
        with open(f"{task}/syscall", "rb") as file:
            number = file.read().partition(b" ")[0]
    except OSError:
        return None
    return number if _LOCK is not None and number.isdigit() else None


def _look(tasks: str) -> Optional[Dict[str, Look]]:
    """Gloo's threads. None: there are none, or they do not show."""
    try:
        found = {name: _status(f"{tasks}/{name}") for name in os.listdir(tasks) if _is_gloo(f"{tasks}/{name}")}
    except (OSError, ValueError, KeyError):
        return None
    return {name: look for name, look in found.items() if look is not None} or None


def _is_gloo(task: str) -> bool:
    return _name(task) == _THREAD


def _name(task: str) -> Optional[bytes]:
    """None: it has ended."""
    try:
        with open(f"{task}/comm", "rb") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _status(task: str) -> Optional[Look]:
    """None: it has ended."""
    try:
        with open(f"{task}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return None
    switches = int(lines[b"voluntary_ctxt_switches"]) + int(lines[b"nonvoluntary_ctxt_switches"])
    return Look(lines[b"State"].split()[0], switches)


def _has_gloo() -> bool:
    world = getattr(sys.modules.get(MODULE), "_world", None)
    groups = getattr(world, "pg_backend_config", None) or {}
    return any("gloo" in str(config) for config in groups.values())


def _change(module: types.ModuleType) -> None:
    destroy: Optional[Callable[..., Any]] = getattr(module, _DESTROY, None)
    if destroy is None:
        return

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        settle()
        done = destroy(*args, **kwargs)
        there = getattr(module, "is_initialized", None)
        if there is not None and not there():
            flight_recorder.forget()
        return done

    package = sys.modules.get(MODULE.rpartition(".")[0])
    for holder in (module, package):
        if getattr(holder, _DESTROY, None) is destroy:
            setattr(holder, _DESTROY, destroy_process_group)
