"""What is written about a checkpoint: the release note (STAGED) and the manifest (DURABLE).

A release note is everything known when a report is released; every agent persists it before it answers its ranks. The
manifest is the note plus checksums and the nonce of whoever committed it. Both come back from disks and peers: parsing
checks every field and raises ValueError, never anything else. Pure.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.layout import checked_path
from trainjob.checkpoint.records.sealed import need, need_count, need_list, need_number, seal, unseal
from trainjob_api import contract, nonfinite

FORMAT = 1
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class NoteFile(NamedTuple):
    """A file of a released checkpoint and the rank whose copy counts. Size in bytes."""

    path: str
    size: int
    rank: int


class FileEntry(NamedTuple):
    """A stored file. `checksum` is lower case hex of `algorithm` over the whole file."""

    path: str
    size: int
    checksum: str
    algorithm: str
    rank: int


class ReleaseNote(NamedTuple):
    """Everything of a checkpoint report that is known at its release."""

    id: CheckpointId
    parent: Optional[CheckpointId]
    """The checkpoint that this one's lineage goes on from; None at the start of a lineage."""
    step: Optional[int]
    total_steps: Optional[int]
    epoch: Optional[int]
    metrics: Mapping[str, Any]
    time: float
    """Seconds since the epoch; for display only."""
    world_size: int
    position: int
    """Reports along the lineage, this one included."""
    files: Tuple[NoteFile, ...]
    """All ranks' files; each path once, with the lowest rank that gave it."""
    duplicates: Tuple[NoteFile, ...] = ()
    """Copies of paths in `files` that higher ranks gave on other agents: not stored, but their checksums are
    compared at the commit.
    """
    metadata: Mapping[str, Any] = _EMPTY

    @property
    def at_step(self) -> str:
        """` (step 40)` for sentences; empty where the report named no step."""
        return "" if self.step is None else f" (step {self.step})"

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(f.size for f in self.files)

    @property
    def ranks(self) -> Tuple[int, ...]:
        """The ranks that have something to share: the ones whose shares a commit needs."""
        return tuple(sorted({f.rank for f in self.files + self.duplicates}))

    def share_of(self, rank: int) -> Dict[str, List[Tuple[str, int]]]:
        """`files` and `duplicates` of a rank, as the storage child's `share` takes them."""
        return {
            name: [(f.path, f.size) for f in files if f.rank == rank]
            for name, files in (("files", self.files), ("duplicates", self.duplicates))
        }

    def to_json(self) -> Dict[str, Any]:
        """A JSON object; `from_json` makes the same note of it."""
        out = _head(self)
        out["files"] = [list(f) for f in self.files]
        if self.duplicates:
            out["duplicates"] = [list(f) for f in self.duplicates]
        return out

    @classmethod
    def from_json(cls, doc: Any) -> ReleaseNote:
        """Raises ValueError when `doc` is no release note."""
        return _note(doc, _files(need(doc, "files")), _files(doc.get("duplicates", [])))


class Manifest(NamedTuple):
    """A committed checkpoint: what the note said, what lies on storage, and who committed it."""

    note: ReleaseNote
    entries: Tuple[FileEntry, ...]
    nonce: str

    @property
    def id(self) -> CheckpointId:
        """Identity of the checkpoint."""
        return self.note.id

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return self.note.total_bytes

    @property
    def is_note(self) -> bool:
        """The files are where user code has put them; what is stored names the place."""
        return any(entry.path == contract.ELSEWHERE_FILE for entry in self.entries)

    def dumps(self) -> bytes:
        """The manifest as it is stored, with a checksum over itself."""
        doc = dict(_head(self.note), format=FORMAT, nonce=self.nonce)
        doc["files"] = [dict(zip(FileEntry._fields, e)) for e in self.entries]
        return seal(doc)

    @classmethod
    def loads(cls, text: bytes) -> Manifest:
        """Raises ValueError when `text` is no manifest, or not the one that was written."""
        doc = unseal(text)
        if doc.get("format") != FORMAT:
            raise ValueError(
                f"format {doc.get('format')!r} is unknown to this version of trainjob, which reads format {FORMAT}"
            )
        entries = tuple(entry_from_json(e) for e in need_list(need(doc, "files")))
        return cls(
            _note(doc, tuple(NoteFile(e.path, e.size, e.rank) for e in entries), ()), entries, str(need(doc, "nonce"))
        )


def _head(note: ReleaseNote) -> Dict[str, Any]:
    return {
        "id": str(note.id),
        "parent": None if note.parent is None else str(note.parent),
        "step": note.step,
        "total_steps": note.total_steps,
        "epoch": note.epoch,
        "metrics": nonfinite.spelled(note.metrics),
        "time": note.time,
        "world_size": note.world_size,
        "position": note.position,
        "metadata": dict(note.metadata),
    }


def _note(doc: Any, files: Tuple[NoteFile, ...], duplicates: Tuple[NoteFile, ...]) -> ReleaseNote:
    parent = need(doc, "parent")
    if len({f.path for f in files}) != len(files):
        raise ValueError("a path stands there twice")
    return ReleaseNote(
        id=CheckpointId.parse(need(doc, "id")),
        parent=None if parent is None else CheckpointId.parse(parent),
        step=_optional_int(doc, "step"),
        total_steps=_optional_int(doc, "total_steps"),
        epoch=_optional_int(doc, "epoch"),
        metrics=nonfinite.numbers(_mapping(doc.get("metrics", {}), "metrics")),
        time=need_number(need(doc, "time"), "time"),
        world_size=need_count(need(doc, "world_size"), "world_size"),
        position=need_count(need(doc, "position"), "position"),
        files=files,
        duplicates=duplicates,
        metadata=_mapping(doc.get("metadata", {}), "metadata"),
    )


def _files(value: Any) -> Tuple[NoteFile, ...]:
    out = []
    for row in need_list(value):
        if len(need_list(row)) != 3:
            raise ValueError(f"{row!r} is not [path, size, rank]")
        out.append(NoteFile(checked_path(row[0]), need_count(row[1], "size"), need_count(row[2], "rank")))
    return tuple(out)


def entry_from_json(row: Any) -> FileEntry:
    """Raises ValueError when `row` is no stored file."""
    checksum, algorithm = need(row, "checksum"), need(row, "algorithm")
    if not isinstance(checksum, str) or not isinstance(algorithm, str):
        raise ValueError("checksum and algorithm must be text")
    return FileEntry(
        checked_path(need(row, "path")),
        need_count(need(row, "size"), "size"),
        checksum,
        algorithm,
        need_count(need(row, "rank"), "rank"),
    )


def _optional_int(doc: Mapping[str, Any], name: str) -> Optional[int]:
    value = doc.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name} is {value!r}, expected a whole number or nothing")
    return value


def _mapping(value: Any, name: str) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, expected an object")
    return value
