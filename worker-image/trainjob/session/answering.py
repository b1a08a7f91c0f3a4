"""A thread that tells the agent where this rank stands: the stacks of its threads (`frames`), and the collectives that
it has called (`flight_recorder`), also while the main thread is inside a call that does not end.

Begun by `stacks`, which has an answer of its own where this one cannot be had: no room, no thread, or a call that holds
the interpreter's lock. Must not raise.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
from _thread import (
    LockType,
    allocate_lock,
    get_ident,
    start_new_thread,
)  # by name: programs replace what these modules have (gevent)
from select import POLLIN, poll
from socket import AF_UNIX, SHUT_RDWR, socket
from time import sleep
from typing import NamedTuple, Optional, Tuple

from trainjob.session import flight_recorder, frames
from trainjob_api import contract
from trainjob_api.recorded_calls import Call
from trainjob_api.standing import STANDING, Standing

_SENDS_WITHIN_S = 1.0
_TRIES_AGAIN_S = 1.0
"""Where the program has no descriptor left for whoever asks."""
_ENDS_WITHIN_S = 0.2
_LOOKS_EVERY_S = 60.0
"""Whether its socket is still there: the kernel does not tell who waits for a descriptor that it was closed."""


class _Served(NamedTuple):
    path: str
    listener: socket
    identity: Tuple[int, int]
    lives: LockType
    """Held by the thread."""

    def is_there(self) -> bool:
        """The program may have closed all files, and opened its own under this number."""
        try:
            return _identity(self.listener) == self.identity
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """What is ours."""
        if self.is_there():
            self.listener.close()
        else:
            self.listener.detach()


_served: Optional[_Served] = None


def serve(path: str) -> None:
    """From now on, on the socket `path` alone; does nothing where that is so already, or in a process that a rank has
    started.
    """
    global _served
    if os.environ.get(contract.ENV_RANK_PID) not in (None, str(os.getpid())):
        return
    if _served is not None and _served.path == path and _served.is_there():
        return
    end()
    # No room, no thread.
    with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as unless_begun:
        listener = unless_begun.enter_context(socket(AF_UNIX))
        if os.path.exists(path):
            os.unlink(path)  # of the attempt before
        listener.bind(path)
        listener.listen(4)
        listener.setblocking(False)
        _served = _Served(path, listener, _identity(listener), allocate_lock())
        unless_begun.callback(_forget)
        _start(_served)
        unless_begun.pop_all()


def end() -> None:
    """No more: this process is no rank any longer, or answers elsewhere."""
    ended = _served
    _forget()
    with contextlib.suppress(OSError):
        if ended is not None and ended.is_there():
            ended.listener.shutdown(SHUT_RDWR)  # the thread that waits for who asks hears of it


def _end_at_exit() -> None:
    """Whoever asks for the lock of an interpreter that ends meanwhile may crash the process (Python 3.9, 3.10)."""
    hears = _served if _served is not None and _served.is_there() else None
    end()
    if hears is not None:
        hears.lives.acquire(timeout=_ENDS_WITHIN_S)


atexit.register(_end_at_exit)


def _forget() -> None:
    global _served
    _served = None


def _after_fork_in_child() -> None:
    # Who asks is to find nobody once this rank is gone, whatever becomes of its children.
    if _served is not None:
        _served.close()
        _forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _identity(listener: socket) -> Tuple[int, int]:
    found = os.fstat(listener.fileno())
    return found.st_dev, found.st_ino


def _start(made: _Served) -> None:
    # A process's signals must find its main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # Not threading's: the program counts its own threads.
        made.lives.acquire()
        start_new_thread(_answer, (made,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(made: _Served) -> None:
    asks = poll()
    asks.register(made.listener, POLLIN)
    while _served is made and made.is_there():
        try:
            # Who waits in accept() holds the number of a descriptor: the program's dup2() to that one would fail.
            if asks.poll(_LOOKS_EVERY_S * 1000) and _served is made and made.is_there():
                # Not accept(): it makes a socket of whatever class the program has put there (gevent), which begins
                # a loop of its own in this thread.
                descriptor, _ = made.listener._accept()  # type: ignore[attr-defined]
                with socket(fileno=descriptor) as asker:
                    asker.settimeout(_SENDS_WITHIN_S)
                    _tell(asker)
        except OSError:
            sleep(_TRIES_AGAIN_S)
    made.close()
    made.lives.release()


def _tell(asker: socket) -> None:
    try:
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
