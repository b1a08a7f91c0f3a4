"""An exception that torch brought from another process, a DataLoader's worker, and raised anew: its message is then the
whole traceback of that process. Taken apart here, for `failure`. Pure.
"""

from __future__ import annotations

import re
from typing import Callable, List, NamedTuple, Optional, Tuple

# torch._utils.ExceptionWrapper.reraise
_TEXT = re.compile(
    r"Caught (?P<type>\w+) (?P<where>in [^\n]+)\.\nOriginal (?P<text>Traceback \(most recent call last\):\n.*)",
    re.DOTALL,
)
_FILE = re.compile(r'  File "(?P<path>[^"]+)", line \d+')


class Relayed(NamedTuple):
    """What happened in the other process."""

    name: str
    """The exception's type, without its module. It is not the type of what torch raises where torch cannot make one of
    a text alone (UnicodeDecodeError): that is then a RuntimeError.
    """
    where: str
    """in DataLoader worker process 0"""
    frames: List[str]
    """Lines of its traceback, without the first one and the exception."""
    lines: List[str]
    """The exception: `KeyError: 'b'`, and what follows where its message has several lines."""

    @property
    def type(self) -> str:
        """The exception's type as its traceback has it, with the module."""
        head = self._head[0].rstrip(":")
        return head if head.rpartition(".")[2] == self.name else self.name

    @property
    def message(self) -> str:
        """What the exception says."""
        return "\n".join([self._head[2], *self.lines[1:]]).strip("\n")

    @property
    def _head(self) -> Tuple[str, str, str]:
        return (self.lines or [self.name])[0].partition(": ")


def of(text: str, skip: Callable[[str], bool]) -> Optional[Relayed]:
    """The parts of an exception's text; None: it is no such text. Frames of files that `skip` names are left out,
    unless there are no others.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    lines = found["text"].rstrip("\n").split("\n")[1:]
    frames_end = max((at for at, line in enumerate(lines) if _FILE.match(line)), default=-1) + 1
    while frames_end < len(lines) and lines[frames_end].startswith("    "):
        frames_end += 1
    kept: List[str] = []
    skipping = False
    for line in lines[:frames_end]:
        frame = _FILE.match(line)
        if frame is not None or not line.startswith(" "):
            skipping = frame is not None and skip(frame["path"])
        if not skipping:
            kept.append(line)
    return Relayed(found["type"], found["where"], kept or lines[:frames_end], lines[frames_end:])
