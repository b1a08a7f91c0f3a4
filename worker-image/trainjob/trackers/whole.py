"""Appending to a file, all of it or nothing.

For `csv_logger` and `tensorboard_logger`, which are called again with what failed: what a full disk took of it would be
there twice, and half a record hides from readers all that comes after it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import BinaryIO


class Whole:
    """Of one file, which is given unbuffered each time."""

    def __init__(self) -> None:
        self._torn: int | None = None
        """From there on lies what a failed write has left."""

    def append(self, file: BinaryIO, data: bytes) -> None:
        """Raises OSError; then nothing of it counts."""
        self.mend(file)
        self._torn = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
        except BaseException:
            with suppress(OSError):  # else before the next write
                self.mend(file)
            raise
        self._torn = None

    def mend(self, file: BinaryIO) -> None:
        """Takes away what a failed write has left. Raises OSError."""
        if self._torn is not None:
            file.truncate(self._torn)
            self._torn = None
