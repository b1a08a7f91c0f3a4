"""Which checkpoint an attempt resumes from, among those that its members hold and the newest one that is committed.
Pure.

Newest means the highest (run, attempt, index). A staged one counts only if every file of every rank is held by some
member, or lies whole on storage already.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote

STAGED = "staged"
STORED = "stored"


class Candidate(NamedTuple):
    """A released checkpoint and the paths that members hold whole."""

    note: ReleaseNote
    held: FrozenSet[str]

    @property
    def lacking(self) -> Tuple[str, ...]:
        """Paths that no member holds."""
        return tuple(f.path for f in self.note.files if f.path not in self.held)


class Choice(NamedTuple):
    """What to resume from. `stored`: with source STAGED, the paths to be read from storage because no member holds
    them.
    """

    note: ReleaseNote
    source: str
    stored: Tuple[str, ...] = ()


def unite(candidates: Iterable[Candidate]) -> List[Candidate]:
    """One candidate an identity, newest first: what different members hold of it is put together."""
    united: Dict[CheckpointId, Candidate] = {}
    for one in candidates:
        other = united.get(one.note.id)
        united[one.note.id] = one if other is None else Candidate(other.note, other.held | one.held)
    return [united[id_] for id_ in sorted(united, reverse=True)]


def choose(
    candidates: Sequence[Candidate], stored: Dict[CheckpointId, FrozenSet[str]], committed: Optional[ReleaseNote]
) -> Optional[Choice]:
    """The newest complete one. `stored`: for candidates that members hold in part, the paths that lie whole on storage.

    A committed checkpoint that members hold too is taken from them: that is nearer.
    """
    for candidate in unite(candidates):
        if committed is not None and candidate.note.id < committed.id:
            break
        lacking = candidate.lacking
        if not lacking or set(lacking) <= stored.get(candidate.note.id, frozenset()):
            return Choice(candidate.note, STAGED, lacking)
    return None if committed is None else Choice(committed, STORED)


def choose_staged(candidates: Sequence[Candidate]) -> Optional[Choice]:
    """For jobs without storage: the newest candidate that the members hold completely."""
    return choose(candidates, {}, None)
