"""The narrow boundary to a job's storage.

Keys are relative paths with `/` (see `layout.py`). Exclusive names are written once by whoever comes first and never
overwritten: that is what fences zombies, as stores themselves fence nothing. Implemented by `path_store.py` and
`s3/store.py`, opened by `opening.py`. Every method may raise StoreError. Paths are not tried again, object stores are,
within a deadline.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.transfer import Progress


class Stored(NamedTuple):
    """A file on storage: size in bytes and its checksum by `algorithm`."""

    size: int
    checksum: str
    algorithm: str


class Wanted(NamedTuple):
    """A file on storage that has to be what is expected."""

    key: str
    path: Optional[str]
    """Where it is brought to; None: it is only read."""
    expected: Stored


class Store(Protocol):
    """A job's folder on storage."""

    @property
    def algorithm(self) -> str:
        """By what uploads are checksummed."""
        ...

    @property
    def at_once(self) -> int:
        """How many files are best moved side by side."""
        ...

    def uri(self, key: str = "") -> str:
        """Where `key` lies, for people and for other processes; without a key the folder itself."""
        ...

    def local(self, folder: str) -> Optional[str]:
        """The path under which this machine's processes read a folder's files as they lie; None where they have to
        be downloaded.
        """
        ...

    def probe(self) -> None:
        """Make the folder and try what a commit needs. Raises StoreError with the sentence that the user reads."""
        ...

    def read(self, key: str) -> Optional[bytes]:
        """The whole of a small file; None when it is not there."""
        ...

    def size(self, key: str) -> Optional[int]:
        """Size in bytes; None when there is no such file."""
        ...

    def names(self, folder: str) -> List[Tuple[str, bool]]:
        """(name, is a folder) of what lies directly in a folder; nothing when it is not there. Unfinished files are
        left out.
        """
        ...

    def sizes(self, folder: str) -> Dict[str, int]:
        """Size by key of all files below a folder, unfinished ones included; nothing when it is not there."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a file that must not be there yet, whole and durable or not at all. False: the name is taken
        (perhaps by this very call, whose reply was lost: read it back and compare)."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a file, over an older one if there is one; readers see the old or the new one, whole."""
        ...

    def upload(self, key: str, source: str, progress: Progress) -> Stored:
        """Copy a local file to an exclusive name. The same file there already is fine; another one raises StoreError
        (conflict).

        The bytes are durable when this returns, the name after `flush`.
        """
        ...

    def flush(self) -> None:
        """Make the names durable that were uploaded through this object."""
        ...

    def checksum(
        self, key: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """Read a file through; None when it is not there. `size`: what it should have, where that is known; it comes
        sooner then if it is so.
        """
        ...

    def download(
        self, key: str, path: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """Copy a file to a local path, over what is there, its folders made; what came, checksummed. None when it is
        not there. `size`: as for `checksum`.
        """
        ...

    def upload_small(self, files: Sequence[Tuple[str, str, int]], progress: Progress) -> Dict[str, Stored]:
        """Of (key, local file, size) the small ones, where there is a way that is cheaper for many together: what is
        stored now as by `upload`, by key.

        Nothing is known of what the answer lacks: that is for `upload`, which tries again and says what is wrong.
        """
        ...

    def download_small(self, files: Sequence[Wanted], progress: Progress) -> Set[str]:
        """The same the other way: the keys that came, or were read, and are what is expected. Raises StoreError
        where a local path cannot be written.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        ...

    def unfinished(self, folder: str) -> List[str]:
        """Keys below a folder under which something is being written, or was when its writer died."""
        ...

    def tidy(self, folder: str) -> None:
        """Remove unfinished files below a folder: what killed processes left. Whoever still writes one fails."""
        ...

    def prune(self, folder: str) -> None:
        """Remove a folder's empty folders and itself, as far as they are empty."""
        ...


def the_same(uri: str, there: Stored, file: int, progress: Progress) -> Stored:
    """What lies at `uri`, if it is the open file; else StoreError: an exclusive name is never written again."""
    os.lseek(file, 0, os.SEEK_SET)
    mine = Stored(*transfer.checksum(file, progress, there.algorithm), there.algorithm)
    if mine == there:
        return there
    raise StoreError(
        errors.CONFLICT,
        f"{uri} is stored already with {there.size} bytes and {there.algorithm} {there.checksum}, the staged file "
        f"has {mine.size} bytes and "
        f"{mine.checksum}; likely the stored one was changed by something else. It is left as it is: this checkpoint "
        "cannot be stored, the next one can.",
    )
