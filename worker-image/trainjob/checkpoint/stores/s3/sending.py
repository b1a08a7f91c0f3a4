"""File contents to an object store: one PUT, or a parallel multipart upload.

Used by the S3 store. The checksum of each part is taken before it is sent, the store checks it, and those of the parts
put together are the file's: no byte is read by one thread alone. Memory is a block for each request in flight, whatever
the file's size.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError, StoreError
from trainjob.checkpoint.stores import digest, transfer
from trainjob.checkpoint.stores.s3 import genuine, parts
from trainjob.checkpoint.stores.s3.parts import Object
from trainjob.checkpoint.stores.s3.requests import Absent
from trainjob.checkpoint.stores.s3.slice import WINDOW, Slice
from trainjob.checkpoint.stores.s3.ways import Bodies, Target
from trainjob.checkpoint.stores.store import Stored
from trainjob.checkpoint.stores.transfer import Progress


def send(target: Object, file: int, size: int, progress: Progress) -> Stored:
    """Store an open file under an exclusive name. Raises Taken, Absent (something else aborted it: begin anew),
    StoreError, StagingError.
    """
    if size <= parts.SINGLE:
        algorithm = target.requests.settings.algorithm
        value = _checksum(file, 0, size, algorithm)
        _send_slice(
            target, Target(target.key, (algorithm, digest.wire(algorithm, value))), (file, 0, size), size, progress
        )
        return Stored(size, digest.text(algorithm, value), algorithm)
    return _Upload(target, file, size, progress).run()


def abort(fields: Dict[str, str], client: Any) -> None:
    """An upload, named as boto3 wants it."""
    genuine.removed(client.abort_multipart_upload(**fields), lambda: client.list_parts(**fields))


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
        self._id = requests.run(
            lambda s3: genuine.of_store(s3.create_multipart_upload(**self._target.names, **kind), "UploadId"), where
        )["UploadId"]
        try:
            transfer.each(list(enumerate(parts.ranges(self._size), 1)), self._send, parts.THREADS, requests.spare)
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
        self._parts[number] = (
            length,
            value,
            {"PartNumber": number, "ETag": etag, **parts.checksum_field(self._algorithm, value)},
        )

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
            ChecksumType="FULL_OBJECT",
            **parts.checksum_field(self._algorithm, value),
        )
        self._target.requests.run(
            lambda s3: genuine.of_store(s3.complete_multipart_upload(**fields), "ETag"),
            self._target.where,
            conditional=True,
        )
        return value

    def _abort(self) -> None:
        try:
            fields = {**self._target.names, "UploadId": self._id}
            self._target.requests.run(lambda client: abort(fields, client), self._target.where)
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
            raise StagingError(
                errors.CHANGED,
                f"a staged file changed while it was stored to {target.where.uri}: expected {size} bytes",
            )
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
