"""File contents to and from an object store: one PUT or a parallel multipart upload, and parallel ranged GETs.

Used by the S3 store. The checksum of each part is taken before it is sent, the store checks it, and those of the parts put together are the
file's: no byte is read by one thread alone. Memory is a block for each request in flight, whatever the file's size.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from trainjob.checkpoint import digest, errors, transfer
from trainjob.checkpoint.errors import StagingError, StoreError
from trainjob.checkpoint.s3.errors import Where
from trainjob.checkpoint.s3.requests import CONNECTIONS, Absent, Empty, Pace, Requests, Stalled, Taken
from trainjob.checkpoint.s3.slice import WINDOW, Slice
from trainjob.checkpoint.s3.ways import Bodies, Reply, Target
from trainjob.checkpoint.store import Stored
from trainjob.checkpoint.transfer import BLOCK, Progress

SINGLE = 16 << 20
"""Files up to this size are one request."""
PART = 8 << 20
MAX_PARTS = 10_000
THREADS = CONNECTIONS
"""For one file, as far as others leave any."""


class Object(NamedTuple):
    """What is written or read, by which requests."""

    requests: Requests
    bucket: str
    key: str
    where: Where

    @property
    def names(self) -> Dict[str, str]:
        """As every request needs them."""
        return {"Bucket": self.bucket, "Key": self.key}


def part_size(size: int) -> int:
    """Of a file of that size: as small as allowed, for many at once and little to send again."""
    needed = -(-size // MAX_PARTS)
    return max(PART, -(-needed // BLOCK) * BLOCK)


def ranges(size: int, first: int = 0) -> List[Tuple[int, int]]:
    """(offset, length) of the parts of a file from `first` on."""
    step = part_size(size)
    return [(at, min(step, size - at)) for at in range(first, size, step)]


def send(target: Object, file: int, size: int, progress: Progress) -> Stored:
    """Store an open file under an exclusive name. Raises Taken, Absent (something else aborted it: begin anew), StoreError, StagingError."""
    if size <= SINGLE:
        algorithm = target.requests.settings.algorithm
        value = _checksum(file, 0, size, algorithm)
        _send_slice(target, Target(target.key, (algorithm, digest.wire(algorithm, value))), (file, 0, size), size, progress)
        return Stored(size, digest.text(algorithm, value), algorithm)
    return _Upload(target, file, size, progress).run()


def checksum_field(algorithm: str, value: int) -> Dict[str, str]:
    """The field of a request that carries a checksum."""
    return {f"Checksum{algorithm.upper()}": digest.wire(algorithm, value)}


class _Upload:
    """One multipart upload."""

    def __init__(self, target: Object, file: int, size: int, progress: Progress) -> None:
        self._target, self._file, self._size, self._progress = target, file, size, progress
        self._algorithm = target.requests.settings.algorithm
        self._parts: Dict[int, Tuple[int, int, Any]] = {}
        self._id = ""

    def run(self) -> Stored:
        requests, where = self._target.requests, self._target.where
        kind = {"ChecksumAlgorithm": self._algorithm.upper(), "ChecksumType": "FULL_OBJECT"}
        self._id = requests.run(lambda s3: s3.create_multipart_upload(**self._target.names, **kind), where)["UploadId"]
        try:
            transfer.each(list(enumerate(ranges(self._size), 1)), self._send, THREADS, requests.spare)
            value = self._complete()
        except BaseException:
            self._abort()
            raise
        return Stored(self._size, digest.text(self._algorithm, value), self._algorithm)

    def _send(self, part: Tuple[int, Tuple[int, int]]) -> None:
        number, (offset, length) = part
        value = _checksum(self._file, offset, length, self._algorithm)
        aim = Target(self._target.key, (self._algorithm, digest.wire(self._algorithm, value)), self._id, number)
        etag = _send_slice(self._target, aim, (self._file, offset, length), self._size, self._progress)
        self._parts[number] = (length, value, {"PartNumber": number, "ETag": etag, **checksum_field(self._algorithm, value)})

    def _complete(self) -> int:
        value = 0
        listed = [self._parts[number] for number in sorted(self._parts)]
        for length, checksum, _ in listed:
            value = digest.combine(self._algorithm, value, checksum, length)
        fields = dict(
            self._target.names,
            UploadId=self._id,
            MultipartUpload={"Parts": [row for _, _, row in listed]},
            IfNoneMatch="*",
            MpuObjectSize=self._size,
            ChecksumType="FULL_OBJECT",
            **checksum_field(self._algorithm, value),
        )
        self._target.requests.run(lambda s3: s3.complete_multipart_upload(**fields), self._target.where, conditional=True)
        return value

    def _abort(self) -> None:
        try:
            self._target.requests.run(lambda s3: s3.abort_multipart_upload(**self._target.names, UploadId=self._id), self._target.where)
        except (Absent, StoreError):
            pass  # the commit tidies up


def _send_slice(target: Object, aim: Target, part: Tuple[int, int, int], size: int, progress: Progress) -> str:
    """A request with a slice of a file as its body; its ETag. Bytes that are sent again count once."""
    counted, this_time = 0, 0

    def moved(count: int) -> None:
        nonlocal counted, this_time
        this_time += count
        if this_time > counted:
            progress(this_time - counted)
            counted = this_time

    def work(bodies: Bodies) -> str:
        nonlocal this_time
        if os.fstat(part[0]).st_size != size:
            raise StagingError(errors.CHANGED, f"a staged file changed while it was stored to {target.where.uri}: expected {size} bytes")
        this_time = 0
        with target.requests.slots:
            return bodies.put(aim, Slice(part, moved, target.requests.settings.timeout_s))

    return target.requests.move(work, target.where, conditional=not aim.part)


def _checksum(file: int, offset: int, length: int, algorithm: str) -> int:
    value, at, buffer = 0, offset, bytearray(min(WINDOW, length))
    view = memoryview(buffer)
    while at < offset + length:
        count = os.preadv(file, [view[: min(len(view), offset + length - at)]], at)
        if not count:
            break  # shorter than it was: told before it is sent
        value = digest.update(algorithm, view[:count], value)
        at += count
    return value


def size(source: Object) -> Optional[int]:
    """Of an object, by a GET of one byte: a HEAD that fails does not say whether the object or the bucket is missing. None when it is not there."""

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
    """A small object, compared with the checksum that the store keeps of it; None when it is not there. Raises StoreError."""
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
        if reply.checksum and "-" not in reply.checksum and reply.checksum != digest.wire(algorithm, digest.update(algorithm, data)):
            raise Stalled(f"{len(data)} bytes came that do not match their checksum")
        return bytes(data)

    try:
        return source.requests.move(read, source.where)
    except Absent:
        return None


def receive(source: Object, file: Optional[int], algorithm: str, progress: Progress, size: Optional[int] = None) -> Optional[Stored]:
    """Read an object through, into an open empty file if one is given; None when it is not there. Raises StoreError.

    `size`: what it should have, so that all parts are asked for at once.
    """
    found = _expected(source, file, algorithm, progress, size) if size is not None and size > PART else None
    if found is not None:
        return found
    if file is not None:
        os.ftruncate(file, 0)
    first = _Range(source, file, algorithm, progress)
    try:
        first.read(0, PART, None)
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
        transfer.each(ranges(first.total, first.done), read, THREADS, source.requests.spare)
    except (Absent, Taken, Empty):
        raise StoreError(errors.UNREADABLE, f"{source.where.uri} was removed or replaced while it was read; likely by retention or by hand") from None
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
    parts: Dict[int, _Range] = {}

    def read(part: Tuple[int, int]) -> None:
        parts[part[0]] = one = _Range(source, file, algorithm, progress)
        one.read(*part, None)

    try:
        transfer.each(ranges(size), read, THREADS, source.requests.spare)
    except (Absent, Empty):
        return None
    if {(one.etag, one.total) for one in parts.values()} != {(parts[0].etag, size)}:
        return None
    return _put_together({offset: (one.done, one.value) for offset, one in parts.items()}, size, algorithm)


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
        self._source.requests.move(lambda bodies: self._read(bodies, offset, length), self._source.where, conditional=etag is not None)

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
        if self.done != min(length, self.total - offset):
            raise Stalled(f"the reply ended after {self.done} bytes")

    def _fill(self, reply: Reply, room: memoryview, pace: Pace, offset: int) -> bool:
        """Take a block together, however small the pieces are in which it comes; what came before a failure is kept. False at the end."""
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
