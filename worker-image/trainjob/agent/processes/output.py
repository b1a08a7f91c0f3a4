"""One rank's output: line by line to the agent's stdout with the rank in front, and as it is into a file.

What happens here happens in the thread of `console`'s reader, so that no print of a rank is ever on the way of a
report(). Lines are `lines`', which of them are held back `quiet`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from typing import Deque, List

from trainjob.agent.processes.console import Console
from trainjob.agent.processes.lines import LineSplitter
from trainjob.agent.processes.quiet import HOLD_S, LOST_S, Quiet

LOG_LIMIT = 32 * 1024 * 1024
"""Bytes of a rank's log file; then it becomes `.1` (replacing the last such)."""
TAIL_LINES = 120
READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
"""More than a pipe holds."""


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
                self.close()
                with contextlib.suppress(FileNotFoundError):  # the last turning over got so far
                    os.replace(self._path, self._path + ".1")
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
                self._size = 0
            self._size += self._file.write(data)
        except (OSError, ValueError):
            pass  # ValueError: turning over failed, and the file is closed

    def close(self) -> None:
        """Close the file. What a disk refuses only then (NFS, a quota) is lost as above."""
        with contextlib.suppress(OSError):
            self._file.close()


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
        self._heard = False
        self._tail: Deque[bytes] = deque(maxlen=TAIL_LINES)
        self.read: asyncio.Future[None] = loop.create_future()
        """To its end, or closed: `tail` changes no more."""
        self.shown: asyncio.Future[None] = loop.create_future()
        """Read to its end, or closed, and printed: who hears of the rank's end finds what it said."""
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

    def heard(self) -> None:
        """The rank has ended, and what it had to say of that was told here, if anything."""
        self._console.reader.order(self._heard_in_thread)

    def close(self) -> None:
        """Stop reading: nobody waits for what a left-over process may still print."""
        self._console.reader.order(self._close_in_thread)
        self.heard()

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
        self._tell_in_thread(self.read)
        self._log.close()
        if self._heard or not self._quiet.holds:
            self._settle_in_thread()
        # Else its own word comes by another way, and may be later than the last that it printed.

    def _heard_in_thread(self) -> None:
        self._heard = True
        if self._fd < 0:
            self._settle_in_thread()

    def _settle_in_thread(self) -> None:
        self._print_in_thread(self._quiet.ended())
        self._console.when_out(lambda: self._tell_in_thread(self.shown))

    def _tell_in_thread(self, what: asyncio.Future[None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: None if what.done() else what.set_result(None))
