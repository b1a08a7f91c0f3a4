"""Writing to streams whose reader may go away at any time (`| head`). Standard library only; for `main` and the
displays.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def write(stream: TextIO, text: str) -> None:
    """A line, or several. Once the reader has gone nothing is said any more: what the command does is worth more
    than its lines.
    """
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            stream.write(encodable(text, stream.encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream.fileno())


def encodable(text: str, encoding: str | None) -> str:
    """The text, with `?` for what that encoding has no sign for: a rank may print what this terminal cannot show."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding, "replace")


def have_all() -> None:
    """A process that was started without one of its standard streams (`>&-`, some daemons) has the one that nobody
    reads: else the next file that is opened would have its number.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)


def silence(*descriptors: int) -> None:
    """The reader of these has gone: say nothing more to it, and do not fail at exit over it."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(devnull, descriptor)
    os.close(devnull)
