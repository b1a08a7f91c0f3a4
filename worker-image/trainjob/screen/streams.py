"""Writing to streams whose reader may go away at any time (`| head`). Standard library only; for `main` and the
displays.
"""

from __future__ import annotations

import os
from typing import TextIO


def write(stream: TextIO, text: str) -> None:
    """A line, or several. Once the reader has gone nothing is said any more: what the command does is worth more
    than its lines.
    """
    try:
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream.fileno())


def silence(*descriptors: int) -> None:
    """The reader of these has gone: say nothing more to it, and do not fail at exit over it."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(devnull, descriptor)
    os.close(devnull)
