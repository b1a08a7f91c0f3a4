"""What an attempt starts from: its run, whether that run is complete already, and the checkpoint.

Called once a join by the storage child of rank 0's agent, with what all members hold. Reads storage; writes only the
claim of the run and that the attempt has begun.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint.choice.choose import STORED, Candidate, Choice, choose, unite
from trainjob.checkpoint.publishing import shares
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.store import Store


class Settled(NamedTuple):
    """`choice` None: from the beginning. `uri`: the folder of the chosen checkpoint on storage, in which it is or
    will be.
    """

    run: int
    completed: bool
    choice: Optional[Choice]
    uri: Optional[str]
    warnings: Tuple[str, ...]
    why: str


def settle(
    store: Store, job_uid: str, resume_from: str, candidates: Sequence[Candidate], attempt: Optional[int] = None
) -> Settled:
    """For an attempt of the job. Raises StoreError when storage cannot be used or resumeFrom cannot be met."""
    warnings: List[str] = []
    claimed = runs.claim(store, job_uid, resume_from, warnings)
    if attempt is not None:
        runs.begin_attempt(store, claimed.run, attempt)
    own = [c for c in unite(candidates) if c.note.id.run == claimed.run]
    committed = stored.newest_good(store, claimed.run, warnings)
    newer = [c for c in own if committed is None or c.note.id >= committed.id]
    # Of a committed one, what nobody holds is compared when it is read.
    uncommitted = [c for c in newer if committed is None or c.note.id != committed.id]
    choice = choose(newer, _stored(store, uncommitted, warnings), None if committed is None else committed.note)
    completed = runs.ended(store, claimed.run)
    if choice is not None:
        why = f"the job resumes from checkpoint {choice.note.id}{choice.note.at_step}, {choice.source}"
        return Settled(claimed.run, completed, choice, store.uri(layout.folder(choice.note.id)), tuple(warnings), why)
    start = runs.origin(store, claimed, warnings)
    if start is None:
        why = claimed.why if attempt in (None, 1) else f"no checkpoint yet: attempt {attempt} starts from the beginning"
        return Settled(claimed.run, completed, None, None, tuple(warnings), why)
    note, why = start.manifest.note, claimed.why
    if note.id != claimed.resumes:  # chosen when the run began, and found damaged since
        why = f"the job resumes from checkpoint {note.id}{note.at_step}, the newest good one before {claimed.resumes}"
    return Settled(claimed.run, completed, Choice(note, STORED), start.uri, tuple(warnings), why)


def _stored(store: Store, candidates: Sequence[Candidate], warnings: List[str]) -> Dict[CheckpointId, FrozenSet[str]]:
    """Paths that no member holds, of candidates newer than the newest complete one, as far as a finished share has them
    on storage.

    Their checksums are compared here: without a manifest, no later step would.
    """
    out: Dict[CheckpointId, FrozenSet[str]] = {}
    for candidate in candidates:
        id_, lacking = candidate.note.id, set(candidate.lacking)
        if not lacking:
            break
        if store.size(layout.damaged_key(id_)) is None and store.size(layout.retired_key(id_)) is None:
            files = [f for f in candidate.note.files if f.path in lacking]
            out[id_] = frozenset(shares.verified(store, id_, files, warnings))
        if lacking <= out.get(id_, frozenset()):
            break
    return out
