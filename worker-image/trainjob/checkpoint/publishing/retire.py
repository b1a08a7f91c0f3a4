"""Removing what retention does not keep, in an order that can be cut off anywhere and begun again.

A mark first (from then on readers pass the checkpoint over and no commit succeeds), then the manifest, the files, the
mark. Only folders of the job's own run are touched, and nothing any more once a later run exists or a later attempt of
the run has begun: it chooses after its mark, and what is committed after that choice is not what it reads. Called by
the storage child of rank 0's agent after a commit.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, List, NamedTuple, Optional, Tuple

from trainjob.checkpoint.errors import DamagedError
from trainjob.checkpoint.publishing.retention import Policy, Scored, plan
from trainjob.checkpoint.reading import runs, stored, validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.store import Store


class Summary(NamedTuple):
    """What is shown of a committed checkpoint, and what it is scored by."""

    id: CheckpointId
    step: Optional[int]
    time: float
    total_bytes: int
    metrics: Dict[str, Any]


class Retained(NamedTuple):
    """What was removed, and what is there now."""

    removed: Tuple[CheckpointId, ...]
    committed: int
    latest: Optional[Summary]
    best: Optional[Summary]
    warnings: Tuple[str, ...]


class Retainer:
    """Retention of one run in one store; remembers manifests that it has read, as they never change."""

    def __init__(self, store: Store, run: int, attempt: Optional[int] = None) -> None:
        """`attempt`: whose agent this is; absent: the run's only one."""
        self._store = store
        self._run = run
        self._attempt = attempt
        self._known: Dict[CheckpointId, Summary] = {}
        self._swept = False
        self._measured: Optional[Dict[CheckpointId, Validation]] = None
        """None: not read yet. Attempts before this one may have validated."""

    def begin(self, attempt: Optional[int]) -> None:
        """From now on for that attempt's agent. What was read of checkpoints stays: a restart costs no look at each of
        thousands.
        """
        if attempt != self._attempt:
            self._attempt, self._swept, self._measured = attempt, False, None

    def retain(
        self,
        policy: Policy,
        protect: Collection[CheckpointId],
        validates: bool = False,
        over: Collection[CheckpointId] = (),
    ) -> Retained:
        """Remove what the policy does not keep and what earlier calls or attempts left unfinished. What validations
        measured counts, and those that are not over keep their checkpoints. `validates`: there may be more of them than
        at the call before. `over`: whose validations are over although storage may not say so. Raises StoreError.
        """
        if validates or self._measured is None:
            self._measured = validations.read(self._store, self._run, self._measured or {})
        measured = self._measured
        open_ones = {id_ for id_, found in measured.items() if found.status == validations.PENDING}
        protect = {*protect, *open_ones.difference(over)}
        committed, leftover = self._look(policy.keep is not None)
        committed = [s._replace(metrics=validations.merged(s.metrics, measured.get(s.id))) for s in committed]
        planned = plan([Scored(s.id, s.metrics) for s in committed], policy, protect)
        while policy.keep is None and not all(
            self._stands(id_) for id_ in {planned.latest, planned.best} if id_ is not None
        ):
            committed = [s for s in committed if s.id in self._known]
            planned = plan([Scored(s.id, s.metrics) for s in committed], policy, protect)
        removed: List[CheckpointId] = []
        if policy.keep is not None and planned.latest is not None:
            for id_ in sorted([*planned.remove, *self._abandoned(leftover, planned.latest, protect)]):
                if runs.overtaken(self._store, self._run, self._attempt):
                    break
                remove(self._store, id_)
                removed.append(id_)
            self._swept = True
        by_id = {s.id: s for s in committed}
        count = len(by_id) - len(by_id.keys() & set(removed))
        latest = by_id.get(planned.latest) if planned.latest else None
        best = by_id.get(planned.best) if planned.best else None
        return Retained(tuple(id_ for id_ in removed if id_ in by_id), count, latest, best, planned.warnings)

    def _look(self, closely: bool) -> Tuple[List[Summary], Dict[CheckpointId, bool]]:
        """Committed checkpoints, and the other folders with whether their removal has begun or they are damaged.

        Where all are kept there may be thousands: those that were looked at before are not listed again at each commit
        (not `closely`).
        """
        committed: List[Summary] = []
        leftover: Dict[CheckpointId, bool] = {}
        for id_ in stored.ids(self._store, self._run):
            if not closely and id_ in self._known:
                committed.append(self._known[id_])
                continue
            names = {name for name, _ in self._store.names(layout.own_folder(id_))}
            summary = None
            if layout.MANIFEST in names and not names & {layout.RETIRED, layout.DAMAGED}:
                summary = self._summary(id_)
            if summary is None:
                leftover[id_] = bool(
                    names & {layout.RETIRED, layout.DAMAGED, layout.MANIFEST}
                ) or not self._store.sizes(layout.folder(id_))
            else:
                committed.append(summary)
        if closely and not self._swept:
            # Uploads that got no further than their first bytes leave no folder on some stores. What a dead attempt
            # left is looked for once.
            leftover = {**{id_: False for id_ in self._unfinished() if id_ not in self._known}, **leftover}
        self._known = {summary.id: summary for summary in committed}  # what was removed is not remembered
        return committed, leftover

    def _stands(self, id_: CheckpointId) -> bool:
        """Whether a checkpoint that was good is not marked or removed by now; forgotten if it is."""
        names = {name for name, _ in self._store.names(layout.own_folder(id_))}
        stands = layout.MANIFEST in names and not names & {layout.RETIRED, layout.DAMAGED}
        if not stands:
            self._known.pop(id_, None)
        return stands

    def _unfinished(self) -> List[CheckpointId]:
        found = []
        for key in self._store.unfinished(layout.CHECKPOINTS):
            try:
                found.append(CheckpointId.parse(key.split("/")[1]))
            except (ValueError, IndexError):
                continue
        return sorted({id_ for id_ in found if id_.run == self._run})

    def _summary(self, id_: CheckpointId) -> Optional[Summary]:
        if id_ not in self._known:
            try:
                manifest = stored.load(self._store, layout.folder(id_), id_)
            except DamagedError:
                return None
            if manifest is None:
                return None
            note = manifest.note
            self._known[id_] = Summary(id_, note.step, note.time, note.total_bytes, dict(note.metrics))
        return self._known[id_]

    @staticmethod
    def _abandoned(
        leftover: Dict[CheckpointId, bool], latest: CheckpointId, protect: Collection[CheckpointId]
    ) -> List[CheckpointId]:
        # An unfinished upload of this attempt may still go on. One of an earlier attempt goes on only if a member holds
        # it, and then it is protected.
        return [
            id_
            for id_, dead in leftover.items()
            if id_ < latest and id_ not in protect and (dead or id_.attempt < latest.attempt)
        ]


def remove(store: Store, id_: CheckpointId) -> None:
    """Remove a checkpoint, or go on with a removal that was cut off."""
    prefix, mark = layout.folder(id_), layout.retired_key(id_)
    keys = set(store.sizes(prefix))
    if keys:
        store.create(mark, b"{}\n")
    # The manifest again at the end: an older leader that did not see the mark may have published it meanwhile.
    store.delete(layout.manifest_key(id_))
    store.tidy(prefix)
    for key in sorted(keys - {mark, layout.manifest_key(id_)}):
        store.delete(key)
    store.delete(layout.manifest_key(id_))
    store.delete(mark)
    store.prune(prefix)
