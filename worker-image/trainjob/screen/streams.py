"""Writing to streams whose reader may go away at any time (`| head`). Standard library only; for `main` and the
displays.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_left_out: dict[TextIO, int] = {}
"""How often there was no room on a stream's disk since it took something."""


def write(stream: TextIO, text: str) -> None:
    """A line, or several. Once the reader has gone nothing is said any more, and while the disk below is full it is
    left out: what the command does is worth more than its lines.
    """
    try:
        _write(stream, text)
    except OSError as error:
        if has_gone(error):
            silence(stream.fileno())
            return
        if error.errno not in _FULL:
            raise
        _left_out[stream] = _left_out.get(stream, 0) + 1
        _forget(stream)


def has_gone(error: OSError) -> bool:
    """Whether nobody reads any more: the other end of a pipe has ended, or the terminal was closed."""
    return isinstance(error, BrokenPipeError) or error.errno == errno.EIO


def say(*lines: str) -> None:
    """Lines on standard error."""
    write(sys.stderr, "\n".join(lines))


def _write(stream: TextIO, text: str) -> None:
    if left_out := _left_out.get(stream, 0):
        text = f"tj  | lines missing here: {left_out} (the disk of this output was full)\n{text}"
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        stream.write(encodable(text, stream.encoding) + "\n")
    stream.flush()
    _left_out.pop(stream, None)


def _forget(stream: TextIO) -> None:
    """What the stream still holds would come before the next line, or fail the program's exit."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError):  # a program's own stream, around the one that is full
        return
    disk = os.dup(descriptor)
    try:
        silence(descriptor)
        stream.flush()
    finally:
        os.dup2(disk, descriptor)
        os.close(disk)


def encodable(text: str, encoding: str | None) -> str:
    """The text, with `?` for what that encoding has no sign for: a rank may print what this terminal cannot show."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding, "replace")


def have_all() -> None:
    """A process that was started without one of its standard streams (`>&-`, some daemons) has the one that nobody
    reads, and its children have: else the next file that is opened would have its number.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Not what has its number: that may be a file that the program has opened since.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)


def silence(*descriptors: int) -> None:
    """The reader of these has gone: say nothing more to it, and do not fail at exit over it."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(devnull, descriptor)
    os.close(devnull)
