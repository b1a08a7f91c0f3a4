"""What trackers' libraries print, into the pod's log: no more than a log has room for. A library that warns at each
row would push out of it what the ranks have printed.

Used by `process` around all that it does, and by `feed` for its words. `Room` is pure.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainjob.screen import streams

BURST = 64 * 1024
"""Bytes that pass at once."""
RATE = 256
"""Bytes a second that pass in the long run."""
AGAIN = BURST // 4
"""Once lines were left out the next one passes when there is room for so much: what is left out is said once a minute,
not before each line."""
LINE_LIMIT = 4096
"""Bytes; a longer line comes in pieces."""
OURS = "tj  | "
"""Lines that begin so are our own: few, and they always pass."""
SLOWER_S = 0.1
"""Between two reads while lines are left out: who prints without an end waits for the pipe, and costs no core."""
DRAIN_S = 1.0
"""At the end, for what is still in the pipe: a child of a library may hold it open."""


def say(who: str, text: str) -> None:
    """A line of ours: whatever a library has made of the streams, and also if the log is full."""
    with suppress(OSError, ValueError, AttributeError):
        streams.say(f"{OURS}{who}: {text}")


class Room:
    """Which lines pass. Times are seconds of a steady clock."""

    def __init__(self, now: float) -> None:
        self._room, self._at = float(BURST), now
        self._begun = b""
        self._left_out = 0

    @property
    def is_full(self) -> bool:
        """Lines are left out."""
        return self._left_out > 0

    def take(self, data: bytes, now: float) -> bytes:
        """What passes of it: complete lines."""
        self._room, self._at = min(float(BURST), self._room + (now - self._at) * RATE), now
        *lines, self._begun = (self._begun + data).split(b"\n")
        while len(self._begun) > LINE_LIMIT:
            lines.append(self._begun[:LINE_LIMIT])
            self._begun = self._begun[LINE_LIMIT:]
        return b"".join(self._passed(line + b"\n") for line in lines)

    def rest(self) -> bytes:
        """The last line, if it had no end."""
        begun, self._begun = self._begun, b""
        return begun + b"\n" if begun else b""

    def _passed(self, line: bytes) -> bytes:
        if line.startswith(OURS.encode()):
            return line
        if self._room < (AGAIN if self._left_out else len(line)):
            self._left_out += 1
            return b""
        self._room -= len(line)
        left_out, self._left_out = self._left_out, 0
        if not left_out:
            return line
        word = (
            f"{OURS}tracking: {left_out} lines that trackers print are left out here: their libraries print more than "
            f"{RATE} bytes a second\n"
        )
        return word.encode() + line


@contextmanager
def bounded() -> Iterator[None]:
    """From now on all that this process and its children print, on stdout too, goes through it to stderr."""
    kept = os.dup(1), os.dup(2)
    reads, writes = os.pipe()
    for fd in (1, 2):
        os.dup2(writes, fd)
    os.close(writes)
    thread = threading.Thread(target=_forward, args=(reads, kept[1]), name="trainjob-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # a library may have put its own in their place
                stream.flush()
        for fd, real in zip((1, 2), kept, strict=True):
            os.dup2(real, fd)
        os.close(kept[0])
        thread.join(DRAIN_S)  # it has the other one, and may go on


def _forward(reads: int, to: int) -> None:
    room = Room(time.monotonic())
    while data := os.read(reads, 64 * 1024):
        _write(to, room.take(data, time.monotonic()))
        if room.is_full:
            time.sleep(SLOWER_S)
    _write(to, room.rest())


def _write(to: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(to, data) :]
    except OSError:
        pass  # nobody reads, or the disk is full
