"""The agent's stdout, and the two threads that keep ranks' prints out of the way of a report(): one reads the ranks'
pipes and has their log files written (`Reader`), one writes our stdout (`Console`). Where stdout is not read the ranks'
prints wait, as they would for a pipe, but not for ever: then lines are dropped, with a word. A fault in one of the
threads ends it, and is the agent's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple

from trainjob.agent.background import OnFault

CONSOLE_LIMIT = 1024 * 1024
"""Bytes that wait for our stdout before ranks' pipes are no longer read."""
STUCK_S = 5.0
"""So long ranks wait for a stdout of which nothing is read; then their lines are dropped until it is."""
SWITCH_S = 0.0005
"""How soon the event loop gets the interpreter back from the thread that splits lines (Python's own: 5 ms)."""


def _untold(error: BaseException) -> None:
    """Of who is no agent: Python says that the thread has ended."""
    raise error


class Console:
    """The agent's stdout. `write` never blocks; who prints much waits for `room` first."""

    def __init__(self, fd: int = 1, verbose: bool = False, on_fault: OnFault = _untold) -> None:
        self._fd = fd
        self._on_fault = on_fault
        self.verbose = verbose
        """Nothing that ranks print is left out."""
        self.at_close: Dict[object, Callable[[], None]] = {}
        """What shows lines that are held back; done in the reader's thread."""
        self._queue: Deque[bytes] = deque()
        self._waiting = 0
        self._written = 0
        self._asked: Deque[Tuple[int, Callable[[], None]]] = deque()
        """Who is told once so many bytes are written."""
        self._broken = False
        self._closing = False
        self._dropped = 0
        self._wake = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self.reader = Reader(on_fault)
        """Of the ranks whose output comes here."""

    def write(self, lines: bytes) -> None:
        """Queue complete lines."""
        with self._wake:
            if self._broken:
                return
            self._queue.append(lines)
            self._waiting += len(lines)
            self._wake.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="console", daemon=True)
                # At a limit of processes there may be none for now: the next lines try again.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def when_out(self, then: Callable[[], None]) -> None:
        """Call `then` once all that was written here is out, or given up; in this thread where nothing waits."""
        with self._wake:
            if self._waiting:
                self._asked.append((self._written + self._waiting, then))
                return
        then()

    def say(self, text: str) -> None:
        """A message of the agent itself."""
        self.write(b"".join(b"agent | " + line.encode("utf-8", "replace") + b"\n" for line in text.splitlines()))

    def show(self, lines: List[bytes]) -> None:
        """Lines of ranks: wait for room, but drop them once nothing at all is read of our stdout. For threads."""
        if not self._room():
            self._dropped += len(lines)
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self.say(
                f"{dropped} lines of ranks are missing here: nobody read this output for {STUCK_S:g} s. Their log "
                "files have them."
            )
        self.write(b"".join(line + b"\n" for line in lines))

    def _room(self) -> bool:
        """Whether there is room, after waiting for it as long as anything is read."""
        with self._wake:
            while self.full and not self._closing:
                before = self._waiting
                # Who has waited in vain does not wait again for each of its lines.
                if not self._wake.wait(0 if self._dropped else STUCK_S) and self._waiting >= before:
                    return False
            return True

    @property
    def full(self) -> bool:
        """More waits than should."""
        return self._waiting > CONSOLE_LIMIT

    def close(self, timeout_s: float) -> None:
        """Read and write what waits, but no longer than this."""
        for show in list(self.at_close.values()):
            self.reader.order(show)
        self.reader.close(timeout_s)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._on_fault(error)

    def _write(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    return
                chunk = b"".join(self._queue)
                self._queue.clear()
            view = memoryview(chunk)
            while view:
                try:
                    count = os.write(self._fd, view)
                except OSError:
                    # Nobody reads any more: the log files go on, the console is over.
                    self._broken, count = True, len(view)
                view = view[count:]
                with self._wake:
                    self._waiting -= count
                    self._written += count
                    self._wake.notify_all()
                self._tell()

    def _tell(self) -> None:
        while True:
            with self._wake:
                if not self._asked or self._asked[0][0] > self._written:
                    return
                _, then = self._asked.popleft()
            then()


class Reader:
    """The thread that reads the ranks' pipes; started by the first."""

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._orders: Deque[Callable[[], None]] = deque()
        self._selector: Optional[selectors.BaseSelector] = None
        self._bell = -1
        self._closed = False

    def order(self, what: Callable[[], None]) -> None:
        """Have something done in the thread, in order."""
        with self._lock:
            if self._thread is None:
                self._start()
            self._orders.append(what)
            if self._bell >= 0:
                try:
                    os.write(self._bell, b"!")
                except BlockingIOError:
                    pass  # it rings already

    def close(self, timeout_s: float) -> None:
        """Do what was ordered, then end."""
        if self._thread is None:
            return
        self.order(self._end)
        self._thread.join(timeout_s)

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """In the thread: call back when there is something to read."""
        assert self._selector is not None
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def forget(self, fd: int) -> None:
        """In the thread: no more."""
        assert self._selector is not None
        self._selector.unregister(fd)

    def _start(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._selector = selectors.DefaultSelector()
        listening, bell = os.pipe()
        thread = threading.Thread(target=self._run, name="output", daemon=True)
        try:
            os.set_blocking(listening, False)
            os.set_blocking(bell, False)
            self._selector.register(listening, selectors.EVENT_READ, lambda: self._rung(listening))
            thread.start()
        except BaseException:  # who comes next tries again
            self._selector.close()
            os.close(listening)
            os.close(bell)
            raise
        self._thread, self._bell = thread, bell

    def _rung(self, listening: int) -> None:
        os.read(listening, 4096)
        while self._orders:
            self._orders.popleft()()

    def _end(self) -> None:
        self._closed = True

    def _run(self) -> None:
        assert self._selector is not None
        try:
            while not self._closed:
                for key, _ in self._selector.select():
                    key.data()
        except Exception as error:
            self._on_fault(error)
        finally:
            with self._lock:
                os.close(self._bell)
                self._bell = -1
            self._selector.close()
