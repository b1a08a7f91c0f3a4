"""What the calls of report() leave behind, at rank 0's agent: the checkpoint that the open one saves, the job's
progress, and its history.

Made by `collectives`, which says when; a checkpoint's rules are `save`, what is shown is `progress` (both pure).
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.barriers import barrier
from trainjob.agent.barriers.history import History
from trainjob.agent.barriers.progress import Progress
from trainjob.agent.barriers.save import Head, Save
from trainjob.agent.committing.commits import Commits
from trainjob.agent.site import Site
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.from_leader import FromLeader
from trainjob.agent.wire.from_member import Compared, Staged
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob_api import contract
from trainjob_api.rank_messages import LogRow, Saved
from trainjob_api.typed import Object

TellEach = Callable[[Optional[Tuple[int, ...]], FromLeader], None]
"""To these members; None: to all."""


class Facts(NamedTuple):
    """What is fixed for the attempt."""

    attempt: int
    run: int
    workers: int
    processes: int
    plain: bool
    base_position: int
    base_parent: Optional[CheckpointId]
    reached: Optional[int] = None
    """The position that attempts before this one came to, as the coordinator says."""


class Reports:
    """One per attempt."""

    def __init__(self, site: Site, tell: TellEach, facts: Facts, commits: Commits, history: History) -> None:
        self._site = site
        self._tell = tell
        self._facts = facts
        self._commits = commits
        self._history = history
        self._progress = Progress(facts.base_position)
        self._row: Object = {}
        self._metadata: Dict[int, Object] = {}
        self._wanted: Dict[int, Object] = {}
        """Each rank's metrics, where somebody follows those of all ranks."""
        self._save: Optional[Save] = None
        self._count = 0
        self._parent = facts.base_parent

    @property
    def progress(self) -> contract.ProgressReport:
        """How far the run is."""
        return self._progress.report

    @property
    def handed_over(self) -> bool:
        """The open one's checkpoint is being committed while its ranks wait (SYNC)."""
        return self._save is not None and self._save.handed_over

    def saves(self, id_: str) -> bool:
        """Whether that is the open one's checkpoint."""
        return self._save is not None and str(self._save.id) == id_

    def gave(self, metadata: Mapping[int, Object]) -> None:
        """Ranks bring a checkpoint with metadata."""
        self._metadata.update(metadata)

    def gave_row(self, row: Object) -> None:
        """What rank 0 reports."""
        self._row = row

    def gave_metrics(self, metrics: Mapping[int, Object]) -> None:
        """What each rank reports, where that is wanted."""
        self._wanted.update(metrics)

    def logged(self, rows: Sequence[LogRow]) -> None:
        """log() of rank 0."""
        for row in rows:
            self._progress.seen(row.metrics, {"step": row.step}, row.time)
            self._history.log({"position": self._progress.position, **row._asdict()})
        self._site.progressed()

    # -- a checkpoint --------------------------------------------------------------------------------------------------

    def stage(self, output: barrier.Stage) -> None:
        """Members stage what their ranks gave."""
        if self._save is None:
            # Counted here, not at the release: an identity is used once, also when its report fails.
            self._count += 1
            self._save = Save(CheckpointId(self._facts.run, self._facts.attempt, self._count))
        self._tell(self._all_of(output.indices), from_leader.Stage(output.n, str(self._save.id)))

    def staged(self, index: int, word: Staged) -> bool:
        """A member has; whether it was asked to."""
        if self._save is not None:
            self._save.staged(index, word)
        return self._save is not None

    def persist(self, output: barrier.Persist, world_size: int) -> Optional[str]:
        """All have: members compare what is there twice (strict), then write the note. Or why nothing is saved."""
        save = self._save
        assert save is not None
        if save.note is None:
            for refusal in save.make_note(self._head(world_size), self._site.config.spec.strict):
                return refusal
        assert save.note is not None
        if save.comparison is None:
            self._tell(self._all_of(output.indices), from_leader.Persist(output.n, save.note))
            return None
        for index in output.indices:
            if index in save.comparison.waiting:
                question = save.comparison.question(index)
                self._tell((index,), from_leader.Compare(output.n, str(save.id), question))
        return None

    def compared(self, index: int, word: Compared) -> Optional[str]:
        """A member's checksums. None: others are waited for; empty: persist; else why nothing is saved."""
        return None if self._save is None else self._save.compared(index, word.sums)

    def hand_over(self, n: int) -> None:
        """SYNC: every agent stores its share at once, the ranks are answered when the manifest is there."""
        save = self._save
        assert save is not None and save.note is not None
        save.handed_over = True
        self._tell(None, from_leader.Upload(n))
        self._commits.released(save.note, save.sharers)

    def _all_of(self, indices: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
        return None if len(indices) == self._facts.workers else indices

    def _head(self, world_size: int) -> Head:
        return Head(
            self._parent,
            self._row,
            self._metadata[min(self._metadata)] if self._metadata else {},
            time.time(),
            world_size,
            self._facts.base_position + self._count,
        )

    # -- the end of one ------------------------------------------------------------------------------------------------

    def released(self) -> Tuple[Optional[Saved], List[str]]:
        """All ranks are answered: with which checkpoint, and with which warnings."""
        save, self._save = self._save, None
        if save is None:
            self._count += 1
        saved: Optional[Saved] = None
        warnings: List[str] = []
        if save is not None and save.note is not None:
            warnings, self._parent = save.warnings, save.id
            durable = save.handed_over and self._site.storage is not None
            saved = self._saved(save.id, contract.DURABLE if durable else contract.STAGED)
            if not save.handed_over:
                self._commits.released(save.note, save.sharers)
        now, id_ = time.time(), None if saved is None else saved.id
        before = self._progress.position
        self._progress.reported(self._count, self._row, now)
        numbers = {"position": self._progress.position, "index": self._count}
        self._history.report({**numbers, **self._row, "time": now, "checkpoint": id_, **self._each()})
        self._forget()
        self._tell_progress(before)
        return saved, warnings

    def _tell_progress(self, before: int) -> None:
        reached, is_first = self._facts.reached, self._count == 1
        if reached is not None and reached < self._progress.position and (is_first or before <= reached):
            self._site.changed(True)  # a failure from now on is one after progress
        elif is_first:  # the operator has a clock on it
            self._site.changed(False)
        else:
            self._site.progressed()

    def saved_last(self) -> Optional[Saved]:
        """For a rank that missed the answer to the report before."""
        return None if self._parent is None else self._saved(self._parent, contract.STAGED)

    def failed(self) -> None:
        """The ranks are refused."""
        self._save = None
        self._forget()
        self._commits.withdraw()

    def _each(self) -> Object:
        return {"ranks": [self._wanted[rank] for rank in sorted(self._wanted)]} if self._wanted else {}

    def _forget(self) -> None:
        self._metadata.clear()
        self._wanted.clear()

    def _saved(self, id_: CheckpointId, level: str) -> Saved:
        return Saved(str(id_), self._site.uri(id_), level)
