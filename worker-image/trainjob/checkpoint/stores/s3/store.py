"""A job's folder in a bucket: the Store on S3 and what speaks its language.

Exclusive names are written with `If-None-Match: *`; a reply that was lost is found out by reading back. Nothing is
renamed, no clock is asked, LIST decides only what exists. Small writes and parts carry a checksum that the store
checks. Safe for several threads.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records.names import UNFINISHED
from trainjob.checkpoint.stores import digest, transfer
from trainjob.checkpoint.stores.s3 import errors as s3_errors
from trainjob.checkpoint.stores.s3 import genuine, parts, receiving, sending, small_files
from trainjob.checkpoint.stores.s3 import settings as s3_settings
from trainjob.checkpoint.stores.s3.errors import Where
from trainjob.checkpoint.stores.s3.parts import Object
from trainjob.checkpoint.stores.s3.probe import probe
from trainjob.checkpoint.stores.s3.requests import CONNECTIONS, Absent, Requests, Taken, requests_for
from trainjob.checkpoint.stores.s3.small_files import Bucket
from trainjob.checkpoint.stores.store import Stored, Wanted, the_same
from trainjob.checkpoint.stores.transfer import Progress

_ROUNDS = 3


class S3Store:
    """The Store below s3://bucket/prefix."""

    at_once = CONNECTIONS

    def __init__(self, uri: str, retry_s: Optional[float] = None, environ: Optional[Mapping[str, str]] = None) -> None:
        self.bucket, self.prefix = s3_settings.parse(uri)
        settings = s3_settings.read(environ)
        self._requests: Requests = requests_for(
            settings if retry_s is None else settings._replace(retry_s=min(retry_s, settings.retry_s))
        )

    @property
    def algorithm(self) -> str:
        """crc64nvme where awscrt is installed."""
        return self._requests.settings.algorithm

    def uri(self, key: str = "") -> str:
        """s3://bucket/prefix/key."""
        return s3_settings.SCHEME + "/".join(part for part in (self.bucket, self.prefix, key) if part)

    def local(self, folder: str) -> Optional[str]:
        """Nothing lies on this machine."""
        return None

    def probe(self) -> None:
        """Try everything that a commit needs."""
        probe(self, self._requests.endpoint, self._refuses)

    def read(self, key: str) -> Optional[bytes]:
        """None when there is no such object."""
        return receiving.whole(self._object(key, "read", False))

    def size(self, key: str) -> Optional[int]:
        """None when there is no such object."""
        return receiving.size(self._object(key, "look at", False))

    def names(self, folder: str) -> List[Tuple[str, bool]]:
        """Sorted by name."""
        prefix, found = self._below(folder), {}
        for page in self._objects(folder, Delimiter="/"):
            found.update({row["Prefix"][len(prefix) : -1]: True for row in page.get("CommonPrefixes") or ()})
            found.update({row["Key"][len(prefix) :]: False for row in page.get("Contents") or ()})
        return sorted(
            (name, is_folder) for name, is_folder in found.items() if name and not name.startswith(UNFINISHED)
        )

    def sizes(self, folder: str) -> Dict[str, int]:
        """What is being uploaded has no size yet and is left out."""
        start = len(self._below(""))
        rows = (row for page in self._objects(folder) for row in page.get("Contents") or ())
        return {row["Key"][start:]: int(row["Size"]) for row in rows if not row["Key"].endswith("/")}

    def create(self, key: str, data: bytes) -> bool:
        """With If-None-Match. A name that may have been taken by a try of ours is read back: the same bytes are
        ours.
        """
        for _ in range(_ROUNDS):
            try:
                self._put(key, data, {"IfNoneMatch": "*"})
                return True
            except Taken as taken:
                there = self.read(key)
                if there is not None:
                    return taken.sent_before and there == data
        raise StoreError(
            errors.CONFLICT,
            f"cannot write {self.uri(key)}: the store says that the name is taken, and that nothing is there. Look "
            "at the store.",
        )

    def put(self, key: str, data: bytes) -> None:
        """Objects are replaced whole."""
        self._put(key, data, {})

    def upload(self, key: str, source: str, progress: Progress) -> Stored:
        """By one request, or by parts side by side."""
        with transfer.open_staged(source) as file:
            size = os.fstat(file.fileno()).st_size
            there = self._stored(key) if size > parts.SINGLE else None
            for _ in range(_ROUNDS):
                if there is None:
                    try:
                        return sending.send(self._object(key, "store", True), file.fileno(), size, progress)
                    except (Taken, Absent):
                        there = self._stored(key)
                if there is not None:
                    return the_same(self.uri(key), there, file.fileno(), progress)
        raise StoreError(
            errors.LOST,
            f"cannot store {self.uri(key)}: its unfinished upload is aborted again and again, likely by another "
            "process of this job.",
        )

    def flush(self) -> None:
        """Objects are durable once they are stored."""

    def checksum(
        self, key: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """By ranged reads side by side."""
        return receiving.receive(self._object(key, "read", False), None, algorithm, progress, size)

    def download(
        self, key: str, path: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """By ranged reads side by side."""
        with transfer.open_target(path) as file:
            return receiving.receive(self._object(key, "read", False), file.fileno(), algorithm, progress, size)

    def upload_small(self, files: Sequence[Tuple[str, str, int]], progress: Progress) -> Dict[str, Stored]:
        """Each by one request, all in one thread."""
        rows = {self._names(key)["Key"]: (key, path, size) for key, path, size in files}
        done = small_files.send(
            self._bucket("store", True), [(name, path, size) for name, (_, path, size) in rows.items()], progress
        )
        return {rows[name][0]: stored for name, stored in done.items()}

    def download_small(self, files: Sequence[Wanted], progress: Progress) -> Set[str]:
        """Each by one request, all in one thread."""
        rows = {self._names(file.key)["Key"]: file for file in files}
        done = small_files.receive(
            self._bucket("read", False), [file._replace(key=name) for name, file in rows.items()], progress
        )
        return {rows[name].key for name in done}

    def delete(self, key: str) -> None:
        """An object that is gone already is fine."""

        def remove(client: Any) -> None:
            names = self._names(key)
            genuine.removed(client.delete_object(**names), lambda: client.get_object(**names)["Body"].close())

        self._read("remove", key, remove, writing=True)

    def unfinished(self, folder: str) -> List[str]:
        """Multipart uploads."""
        start = len(self._below(""))
        return [key[start:] for key, _ in self._uploads(folder)]

    def tidy(self, folder: str) -> None:
        """Abort multipart uploads, remove what a probe left."""
        for key, upload in list(self._uploads(folder)):
            where = self.where("tidy", key[len(self._below("")) :], True)
            fields = {"Bucket": self.bucket, "Key": key, "UploadId": upload}
            try:
                self._requests.run(functools.partial(sending.abort, fields), where)
            except Absent:
                pass

    def prune(self, folder: str) -> None:
        """There are no folders."""

    # -- requests -----------------------------------------------------------------------------------------------------

    def where(self, doing: str, key: str, writing: bool) -> Where:
        """For the sentence about a request that fails."""
        return Where(doing, self.uri(key), self.bucket, self._requests.endpoint, writing)

    def _refuses(self, key: str, data: bytes, checksum: int) -> bool:
        """Whether the store refuses to write an object whose checksum is wrong."""

        def write(client: Any) -> bool:
            try:
                fields = parts.checksum_field(self.algorithm, checksum)
                genuine.stored(client.put_object(**self._names(key), Body=data, **fields))
            except client.exceptions.ClientError as error:
                given = s3_errors.answer(error)
                if given.status == 400 and not s3_errors.nobody(given):
                    return True
                raise
            return False

        return self._requests.run(write, self.where("write", key, True))

    def _put(self, key: str, data: bytes, more: Dict[str, str]) -> None:
        fields = dict(
            self._names(key),
            Body=data,
            **parts.checksum_field(self.algorithm, digest.update(self.algorithm, data)),
            **more,
        )
        self._requests.run(
            lambda client: genuine.stored(client.put_object(**fields)),
            self.where("write", key, True),
            conditional=bool(more),
        )

    def _read(self, doing: str, key: str, work: Callable[[Any], Any], writing: bool = False) -> Any:
        try:
            return self._requests.run(work, self.where(doing, key, writing))
        except Absent:
            return None

    def _pages(self, operation: str, folder: str, **more: str) -> Iterator[Dict[str, Any]]:
        """LIST, page by page, each tried again by itself."""
        follow = {"list_objects_v2": {"ContinuationToken": "NextContinuationToken"}}.get(
            operation, {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        )
        fields = dict(more, Bucket=self.bucket, Prefix=self._below(folder))
        asked: List[Dict[str, str]] = [{}]
        while True:
            work = functools.partial(_page, operation, {**fields, **asked[-1]}, follow, asked)
            page, following = self._requests.run(work, self.where("list", folder, False))
            yield page
            if not following:
                return
            asked.append(following)

    def _objects(self, folder: str, **more: str) -> Iterator[Dict[str, Any]]:
        try:
            yield from self._pages("list_objects_v2", folder, **more)
        except Absent as absent:
            raise StoreError(
                errors.UNREADABLE,
                f"cannot list {self.uri(folder)}: the store looks for an object of the name {self.bucket}; likely the "
                f"endpoint {self._requests.endpoint} names the bucket already. Give it without (AWS_ENDPOINT_URL_S3; "
                "on a cluster spec.checkpoint.s3.endpointURL).",
            ) from absent

    def _uploads(self, folder: str) -> Iterator[Tuple[str, str]]:
        below = self._below(folder)
        try:
            for page in self._pages("list_multipart_uploads", folder):
                for row in page.get("Uploads") or ():
                    if row["Key"].startswith(below):  # some stores know no prefix here, and name those of other jobs
                        yield row["Key"], row["UploadId"]
        except Absent:
            pass  # so some stores say that there are none

    def _names(self, key: str) -> Dict[str, str]:
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}" if self.prefix else key}

    def _object(self, key: str, doing: str, writing: bool) -> Object:
        return Object(self._requests, self.bucket, self._names(key)["Key"], self.where(doing, key, writing))

    def _bucket(self, doing: str, writing: bool) -> Bucket:
        return Bucket(self._requests, self.bucket, self.where(doing, "", writing))

    def _below(self, folder: str) -> str:
        return "".join(f"{part}/" for part in (self.prefix, folder) if part)

    def _stored(self, key: str) -> Optional[Stored]:
        """What the store says of an object, read through if it does not say enough."""
        if self.size(key) is None:
            return None  # said with words, which a HEAD that is refused has not
        field = f"Checksum{self.algorithm.upper()}"
        reply = self._read(
            "look at", key, lambda client: client.head_object(**self._names(key), ChecksumMode="ENABLED")
        )
        if (
            reply
            and field in reply
            and reply.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
            and "-" not in reply[field]
        ):
            return Stored(
                int(reply["ContentLength"]), digest.text(self.algorithm, digest.unwire(reply[field])), self.algorithm
            )
        return self.checksum(key, transfer.nothing, self.algorithm)


def _page(
    operation: str, fields: Dict[str, str], follow: Dict[str, str], asked: List[Dict[str, str]], client: Any
) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """A page, and how the one after it is asked for."""
    page = genuine.listed(getattr(client, operation), fields)
    return page, genuine.following(page, follow, asked)
