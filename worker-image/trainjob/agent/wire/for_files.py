"""What is said on a connection for files, as types: one agent's thread asks, the other agent serves."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from trainjob_api.typed import Vocabulary


class Get(NamedTuple):
    """Of a file's bytes from `start` on, `length` many: send those from `offset` (in the file) on. `sum`: take the
    checksum of all of them by this algorithm, or by crc32 if you do not have it; None: none is wanted.
    """

    id: str
    path: str
    start: int
    length: int
    offset: int
    sum: Optional[str] = None

    def check(self) -> None:
        """Raises ValueError."""
        if min(self.start, self.length, self.offset) < 0:
            raise ValueError("bytes before the file")


class File(NamedTuple):
    """The answer to Get: `count` bytes follow as they are, then End. `size` is the whole file's."""

    size: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    algorithm: str


class End(NamedTuple):
    """All were sent. `sum`: the checksum, if one was asked for."""

    sum: Optional[int]


class Refused(NamedTuple):
    """Instead of File or End."""

    message: str


FROM_FETCHER: Vocabulary[Get] = Vocabulary({"get": Get})
FromServer = Union[File, End, Refused]
FROM_SERVER: Vocabulary[FromServer] = Vocabulary({"file": File, "end": End, "refused": Refused})
