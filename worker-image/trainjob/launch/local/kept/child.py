"""An agent that was started of a kept parent: no child of this process, so its end is told by the process between."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading

from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import FROM_KEPT, PACKET_LIMIT, Ended, parse


class KeptChild:
    """As `subprocess.Popen` is to `Process`."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self.pid = pid
        self._mutex = threading.Lock()
        self._handle: int | None = None
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._handle = os.pidfd_open(pid)

    def wait(self) -> int:
        """Block until its end; the exit code, or minus the signal's number."""
        try:
            data = self._line.recv(PACKET_LIMIT)
            word = parse(FROM_KEPT, data) if data else None
        except (OSError, BadMessage):
            word = None
        if isinstance(word, Ended):
            code = os.waitstatus_to_exitcode(word.status)
        else:
            # Who would tell is gone: then nobody will, and it has to be known that it is over.
            self.send_signal(signal.SIGKILL)
            if self._handle is not None:
                select.select([self._handle], [], [])
            code = -signal.SIGKILL
        self.close()
        return code

    def close(self) -> None:
        """Nobody waits for its end any more."""
        self._line.close()
        with self._mutex:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        with self._mutex, contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
