"""File contents from an object store: parallel ranged GETs, compared on their way.

Used by the S3 store. Each part's checksum is taken as it comes, and those of the parts put together are the file's. A
part that was cut off is gone on with where it stopped. Memory is a block for each request in flight, whatever the
file's size.
"""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import digest, transfer
from trainjob.checkpoint.stores.s3 import parts
from trainjob.checkpoint.stores.s3.parts import Object
from trainjob.checkpoint.stores.s3.requests import Absent, Empty, Pace, Stalled, Taken
from trainjob.checkpoint.stores.s3.slice import WINDOW
from trainjob.checkpoint.stores.s3.ways import Bodies, Reply
from trainjob.checkpoint.stores.store import Stored
from trainjob.checkpoint.stores.transfer import Progress


def size(source: Object) -> Optional[int]:
    """Of an object, by a GET of one byte: a HEAD that fails does not say whether the object or the bucket is
    missing. None when it is not there.
    """

    def look(bodies: Bodies) -> int:
        reply, room = bodies.get(source.key, 0, 0, None), memoryview(bytearray(2))
        try:
            while reply.read_into(room):
                pass
        finally:
            reply.close()
        return reply.total

    try:
        return source.requests.move(look, source.where)
    except Absent:
        return None
    except Empty:
        return 0


def whole(source: Object) -> Optional[bytes]:
    """A small object, compared with the checksum that the store keeps of it; None when it is not there. Raises
    StoreError.
    """
    algorithm, timeout_s = source.requests.settings.algorithm, source.requests.settings.timeout_s

    def read(bodies: Bodies) -> bytes:
        reply, data, pace = bodies.whole(source.key, algorithm), bytearray(), Pace(timeout_s)
        room = memoryview(bytearray(WINDOW))
        try:
            while True:
                count = reply.read_into(room)
                if not count:
                    break
                data += room[:count]
                pace.moved(count)
        finally:
            reply.close()
        if reply.total not in (-1, len(data)):
            raise Stalled(f"the reply ended after {len(data)} of {reply.total} bytes")
        if (
            reply.checksum
            and "-" not in reply.checksum
            and reply.checksum != digest.wire(algorithm, digest.update(algorithm, data))
        ):
            raise Stalled(f"{len(data)} bytes came that do not match their checksum")
        return bytes(data)

    try:
        return source.requests.move(read, source.where)
    except Absent:
        return None


def receive(
    source: Object, file: Optional[int], algorithm: str, progress: Progress, size: Optional[int] = None
) -> Optional[Stored]:
    """Read an object through, into an open empty file if one is given; None when it is not there. Raises StoreError.

    `size`: what it should have, so that all parts are asked for at once.
    """
    found = _expected(source, file, algorithm, progress, size) if size is not None and size > parts.PART else None
    if found is not None:
        return found
    if file is not None:
        os.ftruncate(file, 0)
    first = _Range(source, file, algorithm, progress)
    try:
        first.read(0, parts.PART, None)
    except Absent:
        return None
    except Empty:
        return Stored(0, digest.text(algorithm, 0), algorithm)
    values: Dict[int, Tuple[int, int]] = {0: (first.done, first.value)}

    def read(part: Tuple[int, int]) -> None:
        one = _Range(source, file, algorithm, progress)
        one.read(part[0], part[1], first.etag)
        values[part[0]] = (one.done, one.value)

    try:
        transfer.each(parts.ranges(first.total, first.done), read, parts.THREADS, source.requests.spare)
    except (Absent, Taken, Empty):
        raise StoreError(
            errors.UNREADABLE,
            f"{source.where.uri} was removed or replaced while it was read; likely by retention or by hand",
        ) from None
    return _put_together(values, first.total, algorithm)


def _put_together(values: Dict[int, Tuple[int, int]], total: int, algorithm: str) -> Stored:
    """(length, checksum) of the parts, by offset."""
    value = 0
    for offset in sorted(values):
        length, one = values[offset]
        value = digest.combine(algorithm, value, one, length)
    return Stored(total, digest.text(algorithm, value), algorithm)


def _expected(source: Object, file: Optional[int], algorithm: str, progress: Progress, size: int) -> Optional[Stored]:
    """An object of that size; None for anything else, which is looked at part by part then."""
    found: Dict[int, _Range] = {}

    def read(part: Tuple[int, int]) -> None:
        found[part[0]] = one = _Range(source, file, algorithm, progress)
        one.read(*part, None)

    try:
        transfer.each(parts.ranges(size), read, parts.THREADS, source.requests.spare)
    except (Absent, Empty):
        return None
    if {(one.etag, one.total) for one in found.values()} != {(found[0].etag, size)}:
        return None
    return _put_together({offset: (one.done, one.value) for offset, one in found.items()}, size, algorithm)


class _Range:
    """A part of an object on its way here; a try that was cut off is gone on with where it stopped."""

    def __init__(self, source: Object, file: Optional[int], algorithm: str, progress: Progress) -> None:
        self._source, self._file, self._algorithm, self._progress = source, file, algorithm, progress
        self.done = 0
        self.value = 0
        self.total = 0
        self.etag: Optional[str] = None

    def read(self, offset: int, length: int, etag: Optional[str]) -> None:
        """Up to `length` bytes from `offset`."""
        self.etag = etag
        self._source.requests.move(
            lambda bodies: self._read(bodies, offset, length), self._source.where, conditional=etag is not None
        )

    def _read(self, bodies: Bodies, offset: int, length: int) -> None:
        requests = self._source.requests
        with requests.slots:
            if self.total and self.done >= min(length, self.total - offset):
                return  # all of it came before the last try failed
            reply = bodies.get(self._source.key, offset + self.done, offset + length - 1, self.etag)
            try:
                self.etag, self.total = self.etag or reply.etag, reply.total
                pace, room = Pace(requests.settings.timeout_s), memoryview(bytearray(min(WINDOW, length)))
                while self._fill(reply, room, pace, offset):
                    pass
            finally:
                reply.close()
        if self.done != min(length, max(self.total - offset, 0)):  # some stores send nothing from behind the end
            raise Stalled(f"the reply ended after {self.done} bytes")

    def _fill(self, reply: Reply, room: memoryview, pace: Pace, offset: int) -> bool:
        """Take a block together, however small the pieces are in which it comes; what came before a failure is kept.
        False at the end.
        """
        filled = 0
        try:
            while filled < len(room):
                count = reply.read_into(room[filled:])
                if not count:
                    return False
                filled += count
                pace.moved(count)
        finally:
            if filled:
                self._take(room[:filled], offset)
        return True

    def _take(self, block: memoryview, offset: int) -> None:
        if self._file is not None:
            written = 0
            while written < len(block):
                try:
                    written += os.pwrite(self._file, block[written:], offset + self.done + written)
                except OSError as error:
                    path = os.readlink(f"/proc/self/fd/{self._file}")
                    raise StoreError(*errors.explain(error, "write", path, writing=True)) from error
        self.value = digest.update(self._algorithm, block, self.value)
        self.done += len(block)
        self._progress(len(block))
