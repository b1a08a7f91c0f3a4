"""New files that take the place, and the memory, of a former checkpoint's.

Memory that a kernel gives for a new file has to be found and cleared first, which takes longer than to write it. The
agent keeps what nobody has any more of the files that its ranks save under the same name each time
(`checkpoint.staging.recycling`); who is about to write one takes it. Called by `checkpoint` and by `ShardWriter`.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import BinaryIO

from trainjob_api import contract


class _WrittenOver(io.BufferedRandom):
    """Ends where what was written ends, not where the former one did."""

    def close(self) -> None:
        try:
            if not self.closed:
                self.truncate()
        finally:
            super().close()


def new_file(path: str) -> BinaryIO:
    """A file at `path` to be written once, from its beginning to its end. Raises OSError."""
    folder = os.environ.get(contract.ENV_RECYCLED)
    if folder:
        with contextlib.suppress(OSError):  # there is none, it is another's, or TMPDIR is on another volume
            os.rename(os.path.join(folder, os.path.basename(path)), path)
            return _WrittenOver(open(path, "r+b", buffering=0))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return open(path, "wb")
