"""Requests to an S3 server that stand still until a test lets them go: who sent one can be killed meanwhile, or
overtaken.

held = Held(s3.endpoint()) held.hold(lambda number, request: "manifest.json" in request) ... held.wait() ... kill, or
let others act ... held.let_go(through=True)      # a request, or its effect, after its sender's death
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from support.patience import HANG_S
from support.s3_faults import Faults

Wanted = Callable[[int, str], bool]


class Held(Faults):
    """One request at a time is held: the first that is wanted."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._wanted: Wanted | None = None
        self._holding = threading.Lock()
        self._here, self._go = threading.Event(), threading.Event()
        self._through = True
        self._done = threading.Event()
        self.request: str | None = None
        """The one that is held, or was."""

    def hold(self, wanted: Wanted) -> None:
        """Count anew, and hold the first request for which this is true."""
        self.follow(None)
        with self._holding:
            self._wanted, self.request = wanted, None
        self._here, self._go, self._done = threading.Event(), threading.Event(), threading.Event()

    def take(self, request: str) -> str | None:
        """Count it, and hold it if it is wanted."""
        fault = super().take(request)
        with self._holding:
            mine = self._wanted is not None and self._wanted(len(self.requests), request)
            if mine:
                self._wanted, self.request = None, request
        if not mine:
            return fault
        go = self._go
        self._here.set()
        assert go.wait(HANG_S), "nobody lets the request go"
        return None if self._through else "reset"

    def forwarded(self, request: str) -> None:
        """Perhaps the one that was held."""
        if request == self.request:
            self._done.set()

    def wait(self, timeout_s: float = HANG_S) -> bool:
        """Until a request is held."""
        return self._here.wait(timeout_s)

    def let_go(self, through: bool) -> None:
        """On to the server (returns when it has answered), or lost on its way; requests that come later are not
        held.
        """
        with self._holding:
            self._wanted = None
        self._through = through
        self._go.set()
        if through and self.request is not None:
            assert self._done.wait(HANG_S), "the server does not answer what was held"


def killed_at(held: Held, number: int, through: bool, work: Callable[[], object]) -> bool:
    """Run `work` in a forked process that is killed while its request of that number is under way; whether it came so
    far.

    What `work` uses must not have sent a request in this process before: connections are not to be shared.
    """
    held.hold(lambda at, _request: at == number)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    while not held.wait(0.02):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            held.let_go(True)
            assert os.waitstatus_to_exitcode(status) == 0, "the process failed by itself"
            return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    held.let_go(through)
    return True
