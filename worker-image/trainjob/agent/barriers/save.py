"""One report's checkpoint on its way to its release, at rank 0's agent: what the members have staged, and the release
note that is made of it. Pure.

Made by `collectives` when the members are told to stage.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from trainjob.agent.barriers.comparison import Comparison
from trainjob.agent.wire.from_member import Staged
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint.records import names
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.records.merge import merge
from trainjob_api.typed import Object


class Head(NamedTuple):
    """What of a release note is not files."""

    parent: Optional[CheckpointId]
    row: Object
    """What rank 0 reported."""
    metadata: Object
    time: float
    world_size: int
    position: int


class Save:
    """One per report that carries a checkpoint."""

    def __init__(self, id_: CheckpointId) -> None:
        self.id = id_
        self._listings: Dict[int, Any] = {}
        self._staged_at: Dict[int, int] = {}
        """The agent that staged a rank's files."""
        self.warnings: List[str] = []
        self.note: Optional[Note] = None
        self.comparison: Optional[Comparison] = None
        """Goes on before anything is persisted (strict)."""
        self.handed_over = False
        """It is being committed while its ranks wait (SYNC)."""

    @property
    def sharers(self) -> Set[int]:
        """Agents that hold files of it."""
        return set(self._staged_at.values())

    def staged(self, index: int, word: Staged) -> None:
        """A member has staged its part."""
        for rank, files in word.files.items():
            if files:
                self._listings[rank] = files
                self._staged_at[rank] = index
        self.warnings += word.warnings

    def make_note(self, head: Head, strict: bool) -> Tuple[str, ...]:
        """Once all have: the release note, to be persisted by all. What is returned refuses it.

        `strict`: a warning refuses it, and copies of one path that several members gave are compared first.
        """
        merged, row = merge(self._listings), head.row
        self.warnings += merged.warnings
        note = ReleaseNote(
            id=self.id,
            parent=head.parent,
            step=row.get("step"),
            total_steps=row.get("total_steps"),
            epoch=row.get("epoch"),
            metrics=row.get("metrics") or {},
            time=head.time,
            world_size=head.world_size,
            position=head.position,
            files=merged.files,
            duplicates=merged.duplicates,
            metadata=head.metadata,
        )
        self.note = note.to_json()
        size = names.listing_size(f.path for f in note.files)
        if size > names.LISTING_LIMIT:
            return (names.too_many(len(note.files), size),)
        if strict and self.warnings:
            return (refusal(self.warnings),)
        if strict and note.duplicates:
            self.comparison = Comparison(note, self._staged_at)
        return ()

    def compared(self, index: int, sums: Mapping[int, Mapping[str, str]]) -> Optional[str]:
        """A member's checksums. None: others are waited for; empty: all copies are the same; else why it is refused."""
        if self.comparison is None or not self.comparison.answered(index, sums):
            return None
        differences, self.comparison = self.comparison.differences(), None
        return refusal(differences) if differences else ""


def refusal(why: List[str]) -> str:
    """strict: what would be a warning fails the report, before anybody was told that it is saved."""
    return f"Nothing was saved, as checkpoints of this job are strict: {'; '.join(why)}"
