"""What a way to move file contents to and from a bucket promises. Implemented by `bodies` and `boto`, used by
`sending`, `receiving` and `small_files`.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Protocol, Sequence, Tuple, TypeVar


class Reply(Protocol):
    """A range of an object on its way here."""

    etag: str
    total: int
    """Size of the whole object; -1: not said."""

    checksum: str
    """Of the whole object, as the store spells it, if it was asked for and the store keeps one; else empty."""

    def read_into(self, room: memoryview) -> int:
        """How many bytes came: what has arrived, or arrives first, as far as there is room; 0 at the end, or where
        the stream broke off.
        """
        ...

    def close(self) -> None:
        """Nothing more is read."""
        ...


class Body(Protocol):
    """A request's contents, some bytes of a file."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def read(self, count: int = -1) -> bytes:
        """The next bytes; b"" at the end."""
        ...

    def send(self, connection: Any) -> None:
        """All of it into a connected socket."""
        ...


class Target(NamedTuple):
    """What is written: an object, or a part of a multipart upload."""

    key: str
    checksum: Tuple[str, str]
    """Algorithm, and the value as stores spell it."""
    upload: str = ""
    part: int = 0
    """0: the whole object, under a name that must be free."""

    def headers(self, length: int) -> Dict[str, str]:
        """Of the request that writes so many bytes."""
        algorithm, value = self.checksum
        headers = {"content-length": str(length), f"x-amz-checksum-{algorithm}": value}
        if not self.part:
            headers["if-none-match"] = "*"
        return headers


class Order(Protocol):
    """A small object to be read or written whole."""

    key: str

    def contents(self) -> Optional[Tuple[Optional[Target], bytes]]:
        """What is written where, when its turn has come: (None, b"") for one that is read. None: it cannot be done
        this way.
        """
        ...

    def take(self, contents: memoryview) -> bool:
        """The store's yes, with what it sent, valid during the call; whether that is what was wanted."""
        ...


OrderT = TypeVar("OrderT", bound=Order)


class Bodies(Protocol):
    """One bucket, reached with one set of credentials. Raises what boto3 and sockets raise."""

    def get(self, key: str, first: int, last: int, etag: Optional[str]) -> Reply:
        """Bytes `first` to `last`, of that version alone if an ETag is given."""
        ...

    def whole(self, key: str, algorithm: str) -> Reply:
        """The whole object, with its checksum."""
        ...

    def put(self, target: Target, body: Body) -> str:
        """Store it; its ETag."""
        ...

    def small(self, orders: Sequence[OrderT]) -> Sequence[OrderT]:
        """Those that were done, side by side and with one try each; of the others nothing is known, not even that
        they were not. What an order raises is raised.
        """
        ...

    def close(self) -> None:
        """Connections that are kept for later; others may be opened afterwards."""
        ...


def total(content_range: Optional[str], first: int) -> int:
    """Of the object that a range is of, which begins with that byte. Raises OSError."""
    begin, _, size = str(content_range or "").rpartition("/")
    if not size.isdigit() or begin.split("-")[0] != f"bytes {first}":
        raise OSError(f"the reply to a request for a range from {first} on says {content_range!r} of its range")
    return int(size)
