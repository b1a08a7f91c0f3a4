"""A thread that tells the agent where this rank stands: the stacks of its threads (`frames`), and the collectives that
it has called (`flight_recorder`), also while the main thread is inside a call that does not end.

Begun by `stacks`, which has an answer of its own where this one cannot be had: no room, no thread, or a call that holds
the interpreter's lock. Takes nothing from the program, and must not raise.
"""

from __future__ import annotations

import atexit
import json
import os
import signal

# By name, and C's own: programs replace what these modules have (gevent).
from _socket import AF_UNIX, SHUT_RDWR, socket
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from contextlib import suppress
from select import POLLIN, poll
from time import sleep
from types import BuiltinFunctionType
from typing import NamedTuple, Optional, Tuple

from trainjob.session import descriptors, flight_recorder, frames
from trainjob_api import contract
from trainjob_api.recorded_calls import Call
from trainjob_api.standing import STANDING, Standing

_SENDS_WITHIN_S = 1.0
_TRIES_AGAIN_S = 1.0
"""Where the program has no descriptor left for whoever asks."""
_ENDS_WITHIN_S = 0.2
_LOOKS_EVERY_S = 10.0
"""Whether its socket is still there: the kernel does not tell who waits for a descriptor that it was closed."""


class _Served(NamedTuple):
    path: str
    listener: socket
    ours: Optional[descriptors.Identity]
    lives: LockType
    """Held by the thread."""

    def is_wanted(self) -> bool:
        """It is the one at which this process answers, and the program has not closed it."""
        return _served is self and self.is_there()

    def is_there(self) -> bool:
        """The program has not closed it."""
        return descriptors.is_ours(self.listener.fileno(), self.ours)


_served: Optional[_Served] = None


def serve(path: str) -> None:
    """From now on, on the socket `path` alone; does nothing where that is so already, in a process that a rank has
    started, or where what were threads are none (gevent has come first).
    """
    global _served
    if os.environ.get(contract.ENV_RANK_PID) not in (None, str(os.getpid())):
        return
    if not isinstance(start_new_thread, BuiltinFunctionType):
        return
    if _served is not None and _served.path == path and _served.is_there():
        return
    end()
    try:
        listener = socket(AF_UNIX)
    except OSError:  # no descriptor is free
        return
    made = _Served(path, listener, descriptors.identity(listener.fileno()), allocate_lock())
    try:
        if os.path.exists(path):
            _wake(path)
            os.unlink(path)
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(4)
        _served = made
        _start(made)
    except (OSError, RuntimeError):  # no room, no thread
        _served = None
        descriptors.close(listener, made.ours)


def end() -> None:
    """No more: this process is no rank any longer, or answers elsewhere."""
    global _served
    ended, _served = _served, None
    with suppress(OSError):
        if ended is not None and ended.is_there():
            ended.listener.shutdown(SHUT_RDWR)  # the thread that waits for who asks hears of it


def _end_at_exit() -> None:
    """Whoever asks for the lock of an interpreter that ends meanwhile may crash the process (Python 3.9, 3.10)."""
    hears = _served if _served is not None and _served.is_there() else None
    end()
    if hears is not None:
        hears.lives.acquire(timeout=_ENDS_WITHIN_S)


atexit.register(_end_at_exit)


def _wake(path: str) -> None:
    """The thread that waits at a socket that the program has closed is to find that it is no longer wanted. (At an
    attempt's before nobody waits.)
    """
    caller = socket(AF_UNIX)
    ours = descriptors.identity(caller.fileno())
    with suppress(OSError):
        caller.setblocking(False)
        caller.connect(path)
    descriptors.close(caller, ours)


def _after_fork_in_child() -> None:
    # Who asks is to find nobody once this rank is gone, whatever becomes of its children.
    global _served
    if _served is not None:
        descriptors.close(_served.listener, _served.ours)
        _served = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _start(made: _Served) -> None:
    # A process's signals must find its main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        made.lives.acquire()
        # Not threading's: the program counts its own threads.
        start_new_thread(_answer, (made,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(made: _Served) -> None:
    asks = poll()
    asks.register(made.listener.fileno(), POLLIN)
    while made.is_wanted():
        try:
            # Who waits in accept() holds the number of a descriptor: the program's dup2() to that one would fail.
            if asks.poll(_LOOKS_EVERY_S * 1000) and made.is_wanted():
                descriptor, _ = made.listener._accept()  # type: ignore[attr-defined]
                asker = socket(fileno=descriptor)
                ours = descriptors.identity(descriptor)
                _tell(asker)
                descriptors.close(asker, ours)
        except OSError:
            sleep(_TRIES_AGAIN_S)
    descriptors.close(made.listener, made.ours)
    made.lives.release()


def _tell(asker: socket) -> None:
    try:
        asker.settimeout(_SENDS_WITHIN_S)
        told = Standing(os.getpid(), frames.of_all(but=get_ident()), _calls())
        asker.sendall(json.dumps(STANDING.frame(told)[0]).encode())
    except Exception:
        return  # whoever asks gets nothing, or has gone


def _calls() -> Optional[Tuple[Call, ...]]:
    try:
        found = flight_recorder.calls()
    except Exception:  # whatever torch raises
        return None
    return None if found is None else tuple(found)
