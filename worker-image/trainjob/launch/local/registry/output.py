"""What a job's ranks wrote, kept after the job: a file an attempt, bounded, compressed once the attempt is over.

Beside the checkpoints (`<job's folder>/output/`) where those are on a path, else with the job's record. A file is named
`<start>-<attempt>.log`, the start being that of the launcher: `20260102-150405.250-1.log`, later `.log.gz`.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import IO, NamedTuple

LIMIT = 32 << 20
"""Bytes of one attempt's output; then the file becomes `.1` (replacing the last such): the end of it counts."""
KEPT = 40
"""Attempts whose output is kept."""

_NAME = re.compile(r"(\d{8}-\d{6}\.\d{3})-(\d+)\.log(\.1)?(\.gz)?", re.ASCII)


def stamp(started: float) -> str:
    """How the files of a launcher that started then begin. To the millisecond, as its record is kept (`earlier`): short
    runs of a name follow each other in a second.
    """
    milliseconds = round(started * 1000)
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(milliseconds // 1000))}.{milliseconds % 1000:03d}"


class Piece(NamedTuple):
    """A file of output; they sort in the order in which they were written."""

    start: str
    attempt: int
    newer: int
    """0: the part before the last LIMIT bytes, 1: the last."""
    path: str


class Keeper:
    """Writes one launcher's output. Nothing here raises: the first trouble is in `trouble`, and ends the keeping."""

    def __init__(self, folder: str, started: float, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._start = stamp(started)
        self._attempt: int | None = None
        self._file: IO[bytes] | None = None
        self._size = 0
        self.trouble: str | None = None
        try:
            os.makedirs(folder, exist_ok=True)
            prune(folder, KEPT, self._start)
        except OSError as error:
            self._fail(error)

    def line(self, text: str, attempt: int) -> None:
        """Append a line of that attempt."""
        if self.trouble is not None:
            return
        try:
            if self._file is None or attempt != self._attempt:
                self._begin(attempt)
            assert self._file is not None
            data = text.encode("utf-8", "replace") + b"\n"
            self._file.write(data)
            self._size += len(data)
            if self._size > self._limit:
                self._begin(attempt)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """The job is over."""
        try:
            self._end()
        except OSError as error:
            self._fail(error)

    def _begin(self, attempt: int) -> None:
        path = os.path.join(self._folder, f"{self._start}-{attempt}.log")
        if attempt == self._attempt and self._file is not None:
            self._file.close()
            os.replace(path, path + ".1")
        else:
            self._end()
        # Without a buffer: `tj logs -f` reads along, and a launcher that is killed has written all.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (until the attempt ends)
        self._attempt, self._size = attempt, 0

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            for path in (os.path.join(self._folder, f"{self._start}-{self._attempt}.log{end}") for end in (".1", "")):
                if os.path.exists(path):
                    compress(path)

    def _fail(self, error: OSError) -> None:
        self.trouble = f"what the ranks write is not kept in {self._folder}: {error.strerror or error}"
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None


def compress(path: str) -> None:
    """Put `path.gz` in the place of `path`; whoever is cut off leaves one of them whole. Raises OSError."""
    part = f"{path}.gz.{os.getpid()}.part"
    try:
        with open(path, "rb") as source, gzip.open(part, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target)
        os.replace(part, path + ".gz")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    os.unlink(path)


def pieces(folder: str) -> list[Piece]:
    """All output in that folder, in the order in which it was written."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found: dict[tuple[str, int, int], Piece] = {}
    for name in sorted(names):  # x.log before x.log.gz: of a compression that was cut off the original counts
        match = _NAME.fullmatch(name)
        if match:
            key = (match[1], int(match[2]), 0 if match[3] else 1)
            found.setdefault(key, Piece(*key, os.path.join(folder, name)))
    return sorted(found.values())


def of_run(folder: str, started: float) -> list[Piece]:
    """Those of the run that was started then."""
    return [piece for piece in pieces(folder) if piece.start == stamp(started)]


def lines(piece: Piece) -> Iterator[str]:
    """Its lines; of a damaged file those before the damage. One that was compressed meanwhile is found again."""
    path = piece.path
    if not os.path.exists(path) and os.path.exists(path + ".gz"):
        path += ".gz"
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            for line in file:
                yield line.decode("utf-8", "replace").rstrip("\n")
    except (OSError, EOFError) as error:
        yield f"agent | {path} cannot be read further: {error}"


def prune(folder: str, kept: int, writing: str | None = None) -> None:
    """Only the newest attempts' output stays; of a launcher that was killed it is compressed now. `writing`: the start
    of the one that goes on with its own, on a volume that was away. Raises OSError.
    """
    found = pieces(folder)
    newest = sorted({(piece.start, piece.attempt) for piece in found})[-kept:]
    for piece in found:
        if (piece.start, piece.attempt) not in newest:
            os.unlink(piece.path)
        elif piece.start != writing and not piece.path.endswith(".gz"):
            compress(piece.path)
