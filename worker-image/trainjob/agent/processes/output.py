"""Ranks' output: line by line to the agent's stdout with the rank in front, and as it is into a file per rank.

`LineSplitter` is pure; `Console` writes in a thread of its own, since a reader of our stdout that stops reading must
stop the ranks' prints (as a pipe would) but never the agent itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from typing import Callable, Deque, List, Optional

LINE_LIMIT = 16 * 1024
LOG_LIMIT = 32 * 1024 * 1024
"""Bytes of a rank's log file; then it becomes `.1` (replacing the last such)."""
CONSOLE_LIMIT = 1024 * 1024
"""Bytes that wait for our stdout before ranks' pipes are no longer read."""
TAIL_LINES = 20
PIPE_BYTES = 1024 * 1024
"""More than a pipe holds."""


class LineSplitter:
    """Complete lines of a byte stream; of a progress bar (carriage returns) only what a terminal would show in the
    end.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[bytes]:
        """Lines completed by `data`, without their ends; one longer than LINE_LIMIT comes in pieces."""
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        if b"\r" in self._rest:
            # Keep the last segment, and the one before in case the last is still empty: "50%\r" shows 50%.
            self._rest = b"\r".join(self._rest.rsplit(b"\r", 2)[-2:])
        lines = [piece for part in parts for piece in _pieces(_shown(part))]
        while len(self._rest) > LINE_LIMIT:
            lines.append(self._rest[:LINE_LIMIT])
            self._rest = self._rest[LINE_LIMIT:]
        return lines

    def finish(self) -> List[bytes]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return _pieces(_shown(rest)) if rest else []


def _shown(line: bytes) -> bytes:
    segments = [s for s in line.split(b"\r") if s]
    return segments[-1] if segments else b""


def _pieces(line: bytes) -> List[bytes]:
    return [line[at : at + LINE_LIMIT] for at in range(0, len(line), LINE_LIMIT)] or [b""]


class Console:
    """The agent's stdout. `write` never blocks; `full` says that the ranks should wait."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._queue: Deque[bytes] = deque()
        self._waiting = 0
        self._broken = False
        self._closing = False
        self._wake = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self.on_room: Callable[[], None] = lambda: None
        """Called from the writing thread when there is room again."""

    def write(self, lines: bytes) -> None:
        """Queue complete lines."""
        with self._wake:
            if self._broken:
                return
            self._queue.append(lines)
            self._waiting += len(lines)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="console", daemon=True)
            self._thread.start()

    def say(self, text: str) -> None:
        """A message of the agent itself."""
        self.write(b"".join(b"agent | " + line.encode("utf-8", "replace") + b"\n" for line in text.splitlines()))

    @property
    def full(self) -> bool:
        """More waits than should."""
        return self._waiting > CONSOLE_LIMIT

    def close(self, timeout_s: float) -> None:
        """Write what waits, but no longer than this."""
        with self._wake:
            self._closing = True
            self._wake.notify()
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
            try:
                _write_all(self._fd, chunk)
            except OSError:
                # Nobody reads any more: the log files go on, the console is over.
                self._broken = True
            with self._wake:
                was_full = self.full
                self._waiting = 0 if self._broken else self._waiting - len(chunk)
            if was_full and not self.full:
                self.on_room()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
        except OSError:
            pass

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RankOutput:
    """Reads one rank's stdout and stderr (one pipe, so that their order is kept)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, prefix: str, console: Console, log: LogFile) -> None:
        self._loop = loop
        self._fd = fd
        self._prefix = prefix.encode()
        self._console = console
        self.log = log
        self._splitter = LineSplitter()
        self._tail: Deque[bytes] = deque(maxlen=TAIL_LINES)
        self._reading = False
        self.ended = loop.create_future()
        os.set_blocking(fd, False)
        self.resume()

    def resume(self) -> None:
        """Read (again)."""
        if not self._reading and self._fd >= 0:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        if self._console.full:
            self._reading = False
            self._loop.remove_reader(self._fd)
            return
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.log.write(data)
            self._show(self._splitter.feed(data))
        else:
            self.close()

    def _read_rest(self) -> None:
        """What the pipe still holds: reading may have paused for the console."""
        try:
            data = os.read(self._fd, PIPE_BYTES)
        except OSError:
            return
        self.log.write(data)
        self._show(self._splitter.feed(data))

    def _show(self, lines: List[bytes]) -> None:
        if lines:
            self._tail.extend(lines)
            self._console.write(b"".join(self._prefix + line + b"\n" for line in lines))

    def tail(self) -> str:
        """The last lines."""
        return b"\n".join(self._tail).decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """A message of the agent for this rank's log alone."""
        self.log.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Stop reading: end of file, or nobody waits for what a left-over process may still print."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        self._read_rest()
        os.close(self._fd)
        self._fd = -1
        self._show(self._splitter.finish())
        self.log.close()
        if not self.ended.done():
            self.ended.set_result(None)
