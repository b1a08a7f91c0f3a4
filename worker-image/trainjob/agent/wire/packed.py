"""What agents say of release notes: packed blobs, hashes, and bits for files, since a note of a large checkpoint names
thousands of files.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Iterable, List, Mapping, NamedTuple

from trainjob_api import nonfinite
from trainjob_api.typed import BadMessage

PACKED_LIMIT = 128 * 1024 * 1024
"""Bytes of JSON in a packed blob: several release notes, each of which names at most 16 MiB of files."""
SHA_LENGTH = 32

_ROW = [str, int, int]
Note = Mapping[str, Any]
"""A release note as JSON."""


def pack(value: Any) -> bytes:
    """JSON that repeats itself (file names) as the blob of a frame, a tenth of its size."""
    return zlib.compress(nonfinite.dumps(value).encode(), 1)


def unpack(blob: bytes) -> Any:
    """Raises BadMessage for what is not packed, or is larger than anything that agents say."""
    decoder = zlib.decompressobj()
    try:
        text = decoder.decompress(blob, PACKED_LIMIT)
    except zlib.error as error:
        raise BadMessage(f"a blob that cannot be unpacked: {error}") from error
    if not decoder.eof:
        raise BadMessage(f"a blob of more than {PACKED_LIMIT} bytes, or a part of one")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a blob that is no JSON: {error}"[:200]) from None


def note_sha(note: Note) -> str:
    """By which members tell that they have the same release note."""
    return hashlib.sha256(nonfinite.dumps(note).encode()).hexdigest()[:SHA_LENGTH]


def checked_note(value: Any) -> Note:
    """A release note as far as agents look into it: its id, and rows of (path, size, rank). Raises BadMessage."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or not isinstance(value.get("files"), list):
        raise BadMessage("no release note")
    for row in value["files"]:
        if type(row) is not list or list(map(type, row[:3])) != _ROW:
            raise BadMessage("a release note with a file that has no path, size and rank")
    return value


class Held(NamedTuple):
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

    def to_json(self) -> List[str]:
        """As it is sent."""
        return [self.id, self.sha, bits_to_text(self.bits)]

    @classmethod
    def of_json(cls, row: Any) -> Held:
        """Raises BadMessage."""
        if not (isinstance(row, list) and len(row) == 3 and all(isinstance(part, str) for part in row)):
            raise BadMessage("no held checkpoint")
        id_, sha, bits = row
        if len(sha) != SHA_LENGTH:
            raise BadMessage("a held checkpoint whose note has no hash")
        return cls(id_, sha, bits_of_text(bits))

    def paths(self, note: Note) -> List[str]:
        """The files that are held, in the note's order."""
        return paths_of(note, self.bits)


def bits_to_text(bits: int) -> str:
    """As they are sent."""
    return format(bits, "x")


def bits_of_text(text: Any) -> int:
    """The reverse. Raises BadMessage."""
    try:
        if isinstance(text, str) and text.isalnum() and text.isascii():
            return int(text, 16)
    except ValueError:
        pass
    raise BadMessage("bits that are no hexadecimal number")


def paths_of(note: Note, bits: int) -> List[str]:
    """Those whose bit is set, in the note's order."""
    files = note["files"]
    places = (at * 8 + bit for at, byte in enumerate(_bytes(bits)) if byte for bit in range(8) if byte >> bit & 1)
    return [str(files[place][0]) for place in places if place < len(files)]


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
