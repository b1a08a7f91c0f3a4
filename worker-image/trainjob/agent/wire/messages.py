"""Messages between agents that have a structure of their own, as types: checked where they come in.

`to_message` gives what `trainjob_api.wire` encodes; `parse` raises KeyError, TypeError or ValueError for anything else,
which closes the connection it came on. The flat messages are told by their names in `peer_protocol`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from trainjob.agent.wire import peer_protocol
from trainjob_api import contract, nonfinite, wire

KINDS = (contract.KIND_REPORT, contract.KIND_BARRIER, contract.KIND_BROADCAST)
MODES = (None, contract.UPLOAD_ASYNC, contract.UPLOAD_SYNC, contract.UPLOAD_NONE)


@dataclass(frozen=True)
class Callers:
    """Ranks of one agent that have called alike, in ascending order."""

    ranks: Tuple[int, ...]
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoints that they bring; None: they bring none."""
    stop: bool = False


@dataclass(frozen=True)
class Arrive:
    """Ranks of one agent wait in collective `n`: all of them in one message, unless one of them keeps the others
    waiting.
    """

    n: int
    kind: str
    callers: Tuple[Callers, ...]
    waited_s: float = 0.0
    """How long the first of them has waited for the others here."""
    row: Optional[Mapping[str, Any]] = None
    """What rank 0 reported, if it is among them."""
    metadata: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Of the checkpoint of the lowest rank that brings one with metadata: no other counts."""
    world_size: Optional[int] = None
    """Under a launcher: as its ranks were told."""

    def to_message(self) -> wire.Message:
        """As it is sent."""
        message: Dict[str, Any] = {
            "op": peer_protocol.ARRIVE,
            "n": self.n,
            "kind": self.kind,
            "callers": [[list(c.ranks), c.timeout_s, c.mode, c.stop] for c in self.callers],
            "waited_s": round(self.waited_s, 3),
        }
        if self.row is not None:
            message["row"] = self.row
        if self.metadata:
            message["metadata"] = {str(rank): found for rank, found in self.metadata.items()}
        if self.world_size is not None:
            message["world_size"] = self.world_size
        return message

    @classmethod
    def parse(cls, message: wire.Message) -> Arrive:
        """Raises KeyError, TypeError, ValueError."""
        n, kind, world_size = message["n"], message["kind"], message.get("world_size")
        if type(n) is not int or kind not in KINDS:
            raise ValueError(f"no collective: {kind!r} {n!r}")
        callers = tuple([_callers(*row) for row in message["callers"]])
        metadata = message.get("metadata")
        return cls(
            n,
            kind,
            callers,
            float(message["waited_s"]),
            _mapping(message["row"]) if "row" in message else None,
            {int(rank): _mapping(found) for rank, found in metadata.items()} if metadata else {},
            None if world_size is None else int(world_size),
        )


PACKED_LIMIT = 128 * 1024 * 1024
"""Bytes of JSON in a packed blob: several release notes, each of which names at most 16 MiB of files."""

Note = Mapping[str, Any]
"""A release note as JSON."""


def pack(value: Any) -> bytes:
    """JSON that repeats itself (file names) as the blob of a frame, a tenth of its size."""
    return zlib.compress(nonfinite.dumps(value).encode(), 1)


def unpack(blob: bytes) -> Any:
    """Raises ValueError for what is not packed, or is larger than anything that agents say."""
    decoder = zlib.decompressobj()
    try:
        text = decoder.decompress(blob, PACKED_LIMIT)
    except zlib.error as error:
        raise ValueError(f"a blob that cannot be unpacked: {error}") from error
    if not decoder.eof:
        raise ValueError(f"a blob of more than {PACKED_LIMIT} bytes, or a part of one")
    return json.loads(text)


def note_sha(note: Note) -> str:
    """By which members tell that they have the same release note."""
    return hashlib.sha256(nonfinite.dumps(note).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Held:
    """What a member holds of a staged checkpoint: whose note it knows by the hash of it, its files by their places in
    the note.
    """

    id: str
    sha: str
    bits: int
    """Bit i: the i-th file of the note lies here whole."""

    @classmethod
    def of(cls, note: Note, paths: Iterable[str]) -> Held:
        """Of a note and the paths that are held."""
        mine, bits = set(paths), bytearray(len(note["files"]) // 8 + 1)
        for at, row in enumerate(note["files"]):
            if row[0] in mine:
                bits[at >> 3] |= 1 << (at & 7)
        return cls(str(note["id"]), note_sha(note), int.from_bytes(bits, "little"))

    def to_row(self) -> List[str]:
        """As it is sent."""
        return [self.id, self.sha, format(self.bits, "x")]

    @classmethod
    def parse(cls, row: Sequence[Any]) -> Held:
        """Raises TypeError, ValueError."""
        id_, sha, bits = row
        if not (isinstance(id_, str) and isinstance(sha, str) and len(sha) == 32):
            raise ValueError(f"no held checkpoint: {row!r:.80}")
        return cls(id_, sha, int(bits, 16))

    def paths(self, note: Note) -> List[str]:
        """The files that are held, in the note's order."""
        return paths_of(note, self.bits)


def paths_of(note: Note, bits: int) -> List[str]:
    """Those whose bit is set, in the note's order."""
    files = note["files"]
    places = (at * 8 + bit for at, byte in enumerate(_bytes(bits)) if byte for bit in range(8) if byte >> bit & 1)
    return [str(files[place][0]) for place in places if place < len(files)]


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


LARGE_OF_JOINED = ("checkpoint", "holders", "adopt")


def joined(answer: Mapping[str, Any]) -> Tuple[wire.Message, bytes]:
    """The join's answer, as it is sent to all members. `holders`: bits by address."""
    large = {name: answer[name] for name in LARGE_OF_JOINED}
    large["holders"] = {address: format(bits, "x") for address, bits in answer["holders"].items()}
    small = {name: value for name, value in answer.items() if name not in LARGE_OF_JOINED}
    return {"op": peer_protocol.JOINED, **small}, pack(large)


def parse_joined(message: wire.Message, blob: bytes) -> Dict[str, Any]:
    """The same at the member: `holders` are paths by address. Raises KeyError, TypeError, ValueError."""
    large = unpack(blob)
    chosen = large["checkpoint"]
    holders = {address: paths_of(chosen["note"], int(bits, 16)) for address, bits in large["holders"].items()}
    return {**message, **large, "holders": holders}


def _callers(ranks: List[int], timeout_s: Optional[float], mode: Optional[str], stop: bool) -> Callers:
    if mode not in MODES or set(map(type, ranks)) != {int}:
        raise ValueError(f"no callers: {ranks!r:.80} {mode!r:.80}")
    return Callers(tuple(ranks), None if timeout_s is None else float(timeout_s), mode, bool(stop))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value
