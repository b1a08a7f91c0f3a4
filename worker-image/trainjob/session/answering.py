"""A thread that tells the agent where this rank stands: the stacks of its threads (`frames`), and the collectives that
it has called (`flight_recorder`), also while the main thread is inside a call that does not end.

Begun by `stacks`, which has an answer of its own where this one cannot be had: no room, no thread, or a call that holds
the interpreter's lock. Must not raise.
"""

from __future__ import annotations

import json
import os
import signal
from _thread import get_ident, start_new_thread  # by name: programs replace what these modules have (gevent)
from socket import AF_UNIX, socket
from time import sleep
from typing import NamedTuple, Optional, Tuple

from trainjob.session import descriptors, flight_recorder, frames
from trainjob_api import contract
from trainjob_api.recorded_calls import Call
from trainjob_api.standing import STANDING, Standing

_SENDS_WITHIN_S = 1.0
_TRIES_EACH_S = 0.1


class _Served(NamedTuple):
    path: str
    listener: socket
    ours: Optional[descriptors.Identity]

    def is_there(self) -> bool:
        """The program has not closed it."""
        return self.ours is not None and descriptors.identity(self.listener.fileno()) == self.ours

    def close(self) -> None:
        """If it is still ours."""
        descriptors.close(self.listener, self.ours)


_served: Optional[_Served] = None


def serve(path: str) -> None:
    """From now on, on the socket `path`; does nothing where that is so already, or in a process that a rank has
    started.
    """
    global _served
    if os.environ.get(contract.ENV_RANK_PID) not in (None, str(os.getpid())):
        return
    if _served is not None and _served.path == path and _served.is_there():
        return
    try:
        listener = socket(AF_UNIX)
    except OSError:  # this process's own trouble
        return
    made = _Served(path, listener, descriptors.identity(listener.fileno()))
    try:
        if os.path.exists(path):
            _wake(path)
            os.unlink(path)
        listener.settimeout(None)  # not the program's default
        listener.bind(path)
        listener.listen(4)
        _start(made)
    except (OSError, RuntimeError):  # no room, no thread
        made.close()
    else:
        _served = made


def _wake(path: str) -> None:
    """The thread that waits at a socket that the program has closed finds that it is no longer wanted. Of an attempt
    before there is none.
    """
    caller = socket(AF_UNIX)
    ours = descriptors.identity(caller.fileno())
    try:
        caller.setblocking(False)
        caller.connect(path)
    except OSError:
        pass
    finally:
        descriptors.close(caller, ours)


def _start(made: _Served) -> None:
    # A process's signals must find its main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # Not threading's: the program counts its own threads.
        start_new_thread(_answer, (made,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(made: _Served) -> None:
    while made.is_there():
        try:
            asker, _ = made.listener.accept()
        except OSError:  # closed, or no descriptor is free
            sleep(_TRIES_EACH_S)
            continue
        ours = descriptors.identity(asker.fileno())
        if made.is_there():
            _tell(asker)
        descriptors.close(asker, ours)
    made.close()


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
