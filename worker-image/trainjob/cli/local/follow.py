"""A running job of this machine, followed by its record and its output: for `tj attach` and `tj logs -f`."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator

from trainjob.launch.local.registry import output, records
from trainjob.launch.local.registry.records import Record

POLL_S = 0.2


class Tail:
    """The lines of one start as they come, through new attempts, rotation and compression."""

    def __init__(self, folder: str, start: str | None) -> None:
        """`start` None: of the newest start there is."""
        self._folder, self.start = folder, start
        self._attempt = -1
        self._offset = 0
        self._rest = b""

    def poll(self) -> Iterator[tuple[int, str]]:
        """(attempt, line) for what is new."""
        found = output.pieces(self._folder)
        if self.start is None and found:
            self.start = found[-1].start
        attempts = sorted({piece.attempt for piece in found if piece.start == self.start})
        for attempt in [each for each in attempts if each >= self._attempt]:
            if attempt != self._attempt:
                self._attempt, self._offset, self._rest = attempt, 0, b""
            for data in self._new():
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    yield attempt, line.decode("utf-8", "replace")

    def _new(self) -> Iterator[bytes]:
        path = os.path.join(self._folder, f"{self.start}-{self._attempt}.log")
        data, size = _from(path, self._offset)
        if size is not None and size < self._offset:  # it became `.1`, and a new one was begun
            yield _from(path + ".1", self._offset)[0]
            self._offset = 0
            data, size = _from(path, 0)
        self._offset += len(data)
        yield data


def _from(path: str, offset: int) -> tuple[bytes, int | None]:
    """What stands there from that byte on, and how large the file is; compressed or not."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(), os.fstat(file.fileno()).st_size
    except OSError:
        pass
    try:
        with gzip.open(path + ".gz", "rb") as file:
            data = file.read()
            return data[offset:], len(data)
    except (OSError, EOFError):
        return b"", None


def follow(
    record: Record, start: str | None, on_job: Callable[[Record], None], on_line: Callable[[int, str], None]
) -> Record:
    """Until the job has ended; its last record."""
    tail = Tail(record.output, start)
    path = os.path.join(records.folder_of(record.id), records.FILE)
    while True:
        over = record.state not in (records.RUNNING, records.ENDING)
        found = records.read(path)
        if isinstance(found, Record):
            record = found
            on_job(record)
        for attempt, line in tail.poll():
            on_line(attempt, line)
        if over:
            return record
        time.sleep(POLL_S)
