"""Where a parent is reached that agents can be started of: a socket in a folder of the user's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple


class Door(NamedTuple):
    """Of one."""

    folder: str
    name: str
    """Of its socket there."""

    @contextlib.contextmanager
    def address(self) -> Iterator[str]:
        """A socket's path has room for 107 bytes, and the folder may lie deep. Raises OSError."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{self.name}"
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Of one that is gone, or is to be found no more."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, self.name))
