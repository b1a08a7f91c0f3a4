"""An agent that was started of a kept parent: no child of this process, so how it ended is told by the process between.

Without that one the agent goes on, and its end is seen; how it ended is not known then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading

from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import FROM_KEPT, PACKET_LIMIT, Ended, Took, parse

TELL_S = 10.0
"""For the process between, once the agent has ended: who tells nothing by then is stopped, say."""
UNKNOWN = -signal.SIGKILL
"""Of one of which nobody tells how it ended."""
_EXIT_CODE = 49
"""Of the fields in /proc/<pid>/stat that follow the name: the wait status of one that nobody has waited for yet."""


class KeptChild:
    """As `subprocess.Popen` is to `Process`."""

    def __init__(self, line: socket.socket, took: Took) -> None:
        """While the agent waits for its start. Raises OSError."""
        self._line = line
        self.pid = took.pid
        self._mutex = threading.Lock()
        self._handle = _opened(took.pid)
        try:
            self._between = _opened(took.between) if took.between > 0 else None
        except BaseException:
            self._close(self._handle)
            raise

    def wait(self) -> int:
        """Block until its end; the exit code, or minus the signal's number."""
        self._hears_of_its_end()
        try:
            data = self._line.recv(PACKET_LIMIT, socket.MSG_DONTWAIT)
            word = parse(FROM_KEPT, data) if data else None
        except BlockingIOError:
            word = self._seen()
        except (OSError, BadMessage):
            word = None
        if isinstance(word, Ended):
            code = os.waitstatus_to_exitcode(word.status)
        else:
            if self._handle is not None:
                _readable([self._handle])
            code = UNKNOWN
        self.close()
        return code

    def close(self) -> None:
        """Nobody waits for its end any more."""
        self._line.close()
        with self._mutex:
            self._close(self._handle, self._between)
            self._handle = self._between = None

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        with self._mutex:
            _send(self._handle, number)

    def _hears_of_its_end(self) -> None:
        """Until there is a word, or will be none."""
        _readable([self._line.fileno(), *(() if self._handle is None else (self._handle,))])
        _readable([self._line.fileno()], TELL_S)

    def _seen(self) -> Ended | None:
        """The end of one of which nobody tells: it is as it ended, until the process between is gone."""
        with self._mutex:
            status = None if self._handle is None else _status(self.pid, self._handle)
            _send(self._between, signal.SIGKILL)  # of no use to anybody, and it would stay
        return None if status is None else Ended(status)

    @staticmethod
    def _close(*handles: int | None) -> None:
        for handle in handles:
            if handle is not None:
                os.close(handle)


def _opened(pid: int) -> int | None:
    """None: it has ended already, and is waited for."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _send(handle: int | None, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if handle is not None:
            signal.pidfd_send_signal(handle, number)


def _readable(descriptors: list[int], timeout_s: float | None = None) -> None:
    """Until one is, or so long. (`select` has no room for high numbers.)"""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(None if timeout_s is None else timeout_s * 1000)


def _status(pid: int, handle: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        signal.pidfd_send_signal(handle, 0)  # it has the number still
    except OSError:
        return None
    return int(fields[_EXIT_CODE]) if fields[0] == b"Z" else None
