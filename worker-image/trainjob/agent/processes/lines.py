"""Lines of a rank's output as people read them: of a progress bar a state now and then, of what has no end pieces.
Pure; fed by `output`.
"""

from __future__ import annotations

from typing import List, Optional

LINE_LIMIT = 16 * 1024
BAR_S = 2.0
"""How often a progress bar is shown while it moves."""


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
