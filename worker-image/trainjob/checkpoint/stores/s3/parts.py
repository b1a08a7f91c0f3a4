"""An object of the store, and the parts in which a file travels to it and from it.

Used by `sending` and `receiving`. Pure: asks nothing of the store.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.s3.errors import Where
from trainjob.checkpoint.stores.s3.requests import CONNECTIONS, Requests
from trainjob.checkpoint.stores.transfer import BLOCK

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


def checksum_field(algorithm: str, value: int) -> Dict[str, str]:
    """The field of a request that carries a checksum."""
    return {f"Checksum{algorithm.upper()}": digest.wire(algorithm, value)}
