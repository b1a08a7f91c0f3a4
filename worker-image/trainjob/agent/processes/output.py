"""Ranks' output: line by line to the agent's stdout with the rank in front, and as it is into a file per rank.

`LineSplitter` is pure. Everything else happens in two threads, so that no print of a rank is ever on the way of a
report(): one reads the ranks' pipes and writes their log files, one writes our stdout. Where stdout is not read the
ranks' prints wait, as they would for a pipe, but not for ever: then lines are dropped, with a word.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional

from trainjob.agent.processes.quiet import HOLD_S, LOST_S, Quiet

LINE_LIMIT = 16 * 1024
LOG_LIMIT = 32 * 1024 * 1024
"""Bytes of a rank's log file; then it becomes `.1` (replacing the last such)."""
CONSOLE_LIMIT = 1024 * 1024
"""Bytes that wait for our stdout before ranks' pipes are no longer read."""
STUCK_S = 5.0
"""So long ranks wait for a stdout of which nothing is read; then their lines are dropped until it is."""
BAR_S = 2.0
"""How often a progress bar is shown while it moves."""
TAIL_LINES = 120
READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
"""More than a pipe holds."""
SWITCH_S = 0.0005
"""How soon the event loop gets the interpreter back from the thread that splits lines (Python's own: 5 ms)."""


class LineSplitter:
    """Complete lines of a byte stream; of a progress bar (carriage returns) what a terminal shows every BAR_S, and in
    the end.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._bar: Optional[bytes] = None
        """The state of a progress bar that was shown last."""
        self._bar_at: Optional[float] = None

    def feed(self, data: bytes, now: float = 0.0) -> List[bytes]:
        """Lines completed by `data`, without their ends; one longer than LINE_LIMIT comes in pieces, of which none
        ends within a UTF-8 character.
        """
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        lines = [piece for part in parts for piece in self._end_of(part)]
        if b"\r" in self._rest:
            # Keep the last segment, and the one before in case the last is still empty: "50%\r" shows 50%.
            self._rest = b"\r".join(self._rest.rsplit(b"\r", 2)[-2:])
            lines += self._moving(now)
        while len(self._rest) > LINE_LIMIT:
            at = _boundary(self._rest)
            lines.append(self._rest[:at])
            self._rest = self._rest[at:]
        return lines

    def finish(self) -> List[bytes]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return self._end_of(rest) if rest else []

    def _end_of(self, line: bytes) -> List[bytes]:
        shown, bar = _shown(line), self._bar
        self._bar, self._bar_at = None, None
        return [] if bar is not None and shown == bar else _pieces(shown)

    def _moving(self, now: float) -> List[bytes]:
        state = _shown(self._rest.rpartition(b"\r")[0])
        if self._bar_at is None:
            self._bar_at = now
        if not state or state == self._bar or now - self._bar_at < BAR_S:
            return []
        self._bar, self._bar_at = state, now
        return _pieces(state)


def _shown(line: bytes) -> bytes:
    segments = [s for s in line.split(b"\r") if s]
    return segments[-1] if segments else b""


def _boundary(data: bytes) -> int:
    """Where to cut a line that is too long: at its limit, or before the character that stands there."""
    for at in range(LINE_LIMIT, LINE_LIMIT - 4, -1):
        if data[at] & 0xC0 != 0x80:
            return at
    return LINE_LIMIT  # no UTF-8


def _pieces(line: bytes) -> List[bytes]:
    pieces = []
    while len(line) > LINE_LIMIT:
        at = _boundary(line)
        pieces.append(line[:at])
        line = line[at:]
    return [*pieces, line]


class Console:
    """The agent's stdout. `write` never blocks; who prints much waits for `room` first."""

    def __init__(self, fd: int = 1, verbose: bool = False) -> None:
        self._fd = fd
        self.verbose = verbose
        """Nothing that ranks print is left out."""
        self.at_close: Dict[object, Callable[[], None]] = {}
        """What shows lines that are held back; done in the reader's thread."""
        self._queue: Deque[bytes] = deque()
        self._waiting = 0
        self._broken = False
        self._closing = False
        self._dropped = 0
        self._wake = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self.reader = Reader()
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
                self._thread = threading.Thread(target=self._run, name="console", daemon=True)
                self._thread.start()

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
                    self._wake.notify_all()


class LogFile:
    """A rank's own log; append only, bounded by turning over once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the rank
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Write as it came. A full disk loses log lines, not training."""
        try:
            if self._size + len(data) > LOG_LIMIT:
                self._file.close()
                os.replace(self._path, self._path + ".1")
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
                self._size = 0
            self._size += self._file.write(data)
        except (OSError, ValueError):
            pass  # ValueError: turning over failed, and the file is closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Reader:
    """The thread that reads the ranks' pipes; started by the first."""

    def __init__(self) -> None:
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
        listening, self._bell = os.pipe()
        os.set_blocking(listening, False)
        os.set_blocking(self._bell, False)
        self._selector.register(listening, selectors.EVENT_READ, lambda: self._rung(listening))
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _rung(self, listening: int) -> None:
        os.read(listening, 4096)
        while self._orders:
            self._orders.popleft()()

    def _end(self) -> None:
        self._closed = True

    def _run(self) -> None:
        assert self._selector is not None
        while not self._closed:
            for key, _ in self._selector.select():
                key.data()
        with self._lock:
            os.close(self._bell)
            self._bell = -1
        self._selector.close()


class RankOutput:
    """One rank's stdout and stderr (one pipe, so that their order is kept). Made and asked in the event loop; what is
    named `_in_thread` runs in the reader's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, prefix: str, console: Console, log: LogFile) -> None:
        self._loop = loop
        self._fd = fd
        self._prefix = prefix.encode()
        self._console = console
        self._log = log
        self._splitter = LineSplitter()
        self._quiet = Quiet()
        self._tail: Deque[bytes] = deque(maxlen=TAIL_LINES)
        self.ended: asyncio.Future[None] = loop.create_future()
        """Read to its end, or closed."""
        os.set_blocking(fd, False)
        console.reader.order(self._begin_in_thread)

    def tail(self) -> str:
        """The last lines."""
        return b"\n".join(list(self._tail)).decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """A message of the agent for this rank's log alone."""
        self._console.reader.order(lambda: self._log_in_thread(text.encode("utf-8", "replace")))

    def told(self, speaks_of_a_peer: bool) -> None:
        """The rank's own word about the exception that ends it."""
        self._console.reader.order(lambda: self._print_in_thread(self._quiet.told(speaks_of_a_peer)))

    def lost(self, whom: str) -> None:
        """Another rank broke: a traceback of this one that speaks of a lost peer is its log file's."""
        self._console.reader.order(lambda: self._print_in_thread(self._quiet.lost(whom)))

    def close(self) -> None:
        """Stop reading: nobody waits for what a left-over process may still print."""
        self._console.reader.order(self._close_in_thread)

    def _begin_in_thread(self) -> None:
        self._console.reader.watch(self._fd, self._read_in_thread)

    def _read_in_thread(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take_in_thread(data)
        else:
            self._close_in_thread()

    def _take_in_thread(self, data: bytes) -> None:
        self._log.write(data)
        self._show_in_thread(self._splitter.feed(data, time.monotonic()))

    def _show_in_thread(self, lines: List[bytes]) -> None:
        if lines:
            self._tail.extend(lines)
            held = self._quiet.holds
            self._print_in_thread(lines if self._console.verbose else self._quiet.take(lines))
            if self._quiet.holds and not held:
                self._hold_in_thread()

    def _print_in_thread(self, lines: List[bytes]) -> None:
        if not self._quiet.holds:
            self._console.at_close.pop(self, None)
        if lines:
            self._console.show([self._prefix + line for line in lines])

    def _hold_in_thread(self) -> None:
        """Not for long, and not beyond the agent's end."""
        self._console.at_close[self] = lambda: self._print_in_thread(self._quiet.release())
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        for seconds in (HOLD_S, LOST_S):
            self._loop.call_later(seconds, self._due, seconds)

    def _due(self, seconds: float) -> None:
        self._console.reader.order(lambda: self._print_in_thread(self._quiet.due(seconds)))

    def _log_in_thread(self, data: bytes) -> None:
        if self._fd >= 0:
            self._log.write(data)

    def _close_in_thread(self) -> None:
        if self._fd < 0:
            return
        self._console.reader.forget(self._fd)
        try:
            self._take_in_thread(os.read(self._fd, PIPE_BYTES))
        except OSError:
            pass  # nothing is left in it
        os.close(self._fd)
        self._fd = -1
        self._show_in_thread(self._splitter.finish())
        self._print_in_thread(self._quiet.ended())
        self._log.close()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
