"""Small files to and from an object store, many at once, one try each: what is cheap for thousands of them and no loss
for a few.

Used by the S3 store. What is not in an answer has not been done, for whatever reason: each such file goes the patient
way, one by one (`sending`, `receiving`).
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Set, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import digest, transfer
from trainjob.checkpoint.stores.s3.errands import LIMIT
from trainjob.checkpoint.stores.s3.errors import Where
from trainjob.checkpoint.stores.s3.requests import Requests
from trainjob.checkpoint.stores.s3.ways import OrderT, Target
from trainjob.checkpoint.stores.store import Stored, Wanted
from trainjob.checkpoint.stores.transfer import Progress

FEW = 16
"""Below this it is not worth while."""


class Bucket(NamedTuple):
    """Where the files lie, by which requests."""

    requests: Requests
    name: str
    where: Where


def receive(bucket: Bucket, files: Sequence[Wanted], progress: Progress) -> Set[str]:
    """The keys that came and are what they should be. Raises StoreError where a path cannot be written."""
    small = [
        _Get(*file, progress)
        for file in files
        if file.expected.size <= LIMIT and file.expected.algorithm in digest.ALGORITHMS
    ]
    return {get.key for get in _run(bucket, small)}


def send(bucket: Bucket, files: Sequence[Tuple[str, str, int]], progress: Progress) -> Dict[str, Stored]:
    """(key, path, size) under exclusive names: what is stored now."""
    algorithm = bucket.requests.settings.algorithm
    small = [_Put(key, path, size, algorithm, progress) for key, path, size in files if size <= LIMIT]
    return {put.key: put.stored for put in _run(bucket, small) if put.stored is not None}


def _run(bucket: Bucket, orders: Sequence[OrderT]) -> Sequence[OrderT]:
    if len(orders) < FEW:
        return ()
    return bucket.requests.move(lambda bodies: bodies.small(orders), bucket.where)


class _Get:
    """A file that comes."""

    def __init__(self, key: str, path: Optional[str], expected: Stored, progress: Progress) -> None:
        self.key = key
        self._path, self._expected, self._progress = path, expected, progress

    def contents(self) -> Tuple[None, bytes]:
        """Nothing is written."""
        return None, b""

    def take(self, contents: memoryview) -> bool:
        """Only what is right is kept."""
        size, checksum, algorithm = self._expected
        if len(contents) != size or digest.text(algorithm, digest.update(algorithm, contents)) != checksum:
            return False
        if self._path is not None:
            self._write(self._path, contents)
        self._progress(size)
        return True

    def _write(self, path: str, contents: memoryview) -> None:
        with transfer.open_target(path) as file:
            try:
                written = 0
                while written < len(contents):
                    written += file.write(contents[written:])
            except OSError as error:
                raise StoreError(*errors.explain(error, "write", path, writing=True)) from error


class _Put:
    """A file that is stored."""

    def __init__(self, key: str, path: str, size: int, algorithm: str, progress: Progress) -> None:
        self.key = key
        self._path, self._size, self._algorithm, self._progress = path, size, algorithm, progress
        self._value = 0
        self.stored: Optional[Stored] = None

    def contents(self) -> Optional[Tuple[Target, bytes]]:
        """The whole file. One that is not what was released is left to the way that has words for it."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                data = file.read(self._size + 1) or b""
        except OSError:
            return None
        if len(data) != self._size:
            return None
        self._value = digest.update(self._algorithm, data)
        return Target(self.key, (self._algorithm, digest.wire(self._algorithm, self._value))), data

    def take(self, contents: memoryview) -> bool:
        """The store has it, if it says no more."""
        if contents:
            return False
        self.stored = Stored(self._size, digest.text(self._algorithm, self._value), self._algorithm)
        self._progress(self._size)
        return True
