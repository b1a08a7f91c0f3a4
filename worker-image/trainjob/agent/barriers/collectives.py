"""Rank 0's agent: serves report(), barrier() and broadcast_from_rank_zero() of the attempt. The rules are `barrier`
(pure); this carries them out.

Made by `leader` when the join is answered. On the way of every report(): nothing here logs, waits or touches a disk
unless a checkpoint came with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence

from trainjob.agent.barriers import barrier
from trainjob.agent.barriers.barrier import Arrival, Barrier
from trainjob.agent.barriers.comparison import Comparison
from trainjob.agent.barriers.history import History
from trainjob.agent.barriers.missing import Missing
from trainjob.agent.site import Site
from trainjob.agent.storing.commits import Commits, shown_metrics
from trainjob.agent.wire import peer_protocol
from trainjob.agent.wire.messages import Arrive, pack
from trainjob.checkpoint.records import names
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.records.merge import merge
from trainjob_api import contract, nonfinite, wire

Tell = Callable[..., None]


class Facts(NamedTuple):
    """What is fixed for the attempt."""

    attempt: int
    run: int
    workers: int
    processes: int
    plain: bool
    base_position: int
    base_parent: Optional[str]


class _Save:
    """One report's checkpoint on its way to its release."""

    def __init__(self, id_: CheckpointId) -> None:
        self.id = id_
        self.listings: Dict[int, List[Any]] = {}
        self.staged_at: Dict[int, int] = {}
        """The agent that staged a rank's files."""
        self.warnings: List[str] = []
        self.note: Optional[Dict[str, Any]] = None
        self.comparison: Optional[Comparison] = None
        """Goes on before anything is persisted (strict)."""
        self.handed_over = False
        """It is being committed while its ranks wait (SYNC)."""


class Collectives:
    """One per attempt."""

    def __init__(self, site: Site, tell: Tell, facts: Facts, commits: Commits, history: History) -> None:
        self._site = site
        self._tell = tell
        self._facts = facts
        self._commits = commits
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._barrier = Barrier(facts.workers * facts.processes, range(facts.workers), site.config.barrier_warn_s)
        self._outputs: Deque[barrier.Output] = deque()
        self._busy = False
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = 0.0
        self._row: Mapping[str, Any] = {}
        self._metadata: Dict[int, Mapping[str, Any]] = {}
        self._blob = b""
        self._answered = 0
        self._answer_blob = b""
        self._save: Optional[_Save] = None
        self._reports = 0
        self._parent = None if facts.base_parent is None else CheckpointId.parse(facts.base_parent)
        self.needed: Dict[int, Dict[str, Any]] = {}
        """By worker, what it is told of ranks that ended although others waited for them: the attempt is no success."""
        self.missing = Missing(tell, site.on_fault)
        self.progress: contract.ProgressReport = {
            "position": facts.base_position,
            "step": None,
            "total_steps": None,
            "epoch": None,
            "metrics": {},
            "time": 0.0,
        }

    def close(self) -> None:
        """The attempt is over."""
        if self._timer is not None:
            self._timer.cancel()
        self.missing.close()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def arrived(self, index: int, message: Arrive, blob: bytes) -> None:
        """Ranks of an agent have called a collective."""
        if not self._facts.plain:
            self._resize(message.world_size or 0)
        else:
            each = self._facts.processes
            for callers in message.callers:
                if not min(callers.ranks) // each == index == max(callers.ranks) // each:
                    raise ValueError(f"not all of ranks {callers.ranks} are ranks of worker {index}")
        if message.n > self._answered:
            # Not of a call that is only repeated after a lost connection.
            if message.row is not None or any(callers.ranks[:1] == (0,) for callers in message.callers):
                self._row, self._blob = message.row or {}, blob
            self._metadata.update(message.metadata)
        now = self._loop.time()
        for callers in message.callers:
            arrival = Arrival(
                callers.ranks[0],
                message.n,
                message.kind,
                callers.timeout_s,
                callers.mode,
                callers.stop,
                message.waited_s,
            )
            self._carry_out(self._barrier.arrive_together(now, callers.ranks, arrival))

    def ended(self, index: int, rank: int, how: str) -> None:
        """A rank process has ended; under a launcher all ranks below it."""
        ranks: Sequence[int] = (rank,)
        if not self._facts.plain:
            each = self._barrier.world_size // self._facts.workers
            ranks = range(index * each, (index + 1) * each)
        for one in ranks:
            self._carry_out(self._barrier.ended(one, how))

    def staged(self, index: int, message: wire.Message) -> None:
        """An agent has staged its part."""
        save = self._save
        if save is None or message["n"] != self._barrier.current:
            return
        for rank, files in message["files"].items():
            if files:
                save.listings[int(rank)] = [(str(path), int(size)) for path, size in files]
                save.staged_at[int(rank)] = index
        save.warnings += [str(w) for w in message["warnings"]]
        self._carry_out(self._barrier.staged(index, message["n"]))

    def stage_failed(self, index: int, message: wire.Message) -> None:
        """An agent cannot stage."""
        self._carry_out(
            self._barrier.stage_failed(
                index, message["n"], f"Worker {index} cannot stage the checkpoint: {message['message']}"
            )
        )

    def compared(self, index: int, message: wire.Message) -> None:
        """An agent has taken the checksums that were asked for."""
        save, n = self._save, self._barrier.current
        if (
            save is None
            or save.comparison is None
            or message["n"] != n
            or not save.comparison.answered(index, message["sums"])
        ):
            return
        differences, save.comparison = save.comparison.differences(), None
        if differences:
            self._refuse(n, differences)
        else:
            self._persist(barrier.Persist(n, tuple(range(self._facts.workers))))

    def persisted(self, index: int, n: int) -> None:
        """An agent has the release note on disk."""
        self._carry_out(self._barrier.persisted(index, n))

    def committed(self, id_: str) -> None:
        """A checkpoint is durable."""
        if self._save is not None and str(self._save.id) == id_:
            self._carry_out(self._barrier.committed(self._barrier.current))

    def commit_trouble(self, id_: str, why: str) -> None:
        """A checkpoint is not durable for now."""
        if self._save is not None and str(self._save.id) == id_:
            self._carry_out(self._barrier.commit_failed(self._barrier.current, why))

    def refuse_reports(self, why: str) -> None:
        """From now on every report() fails: the job is to fail because checkpoints cannot be stored."""
        self._carry_out(self._barrier.refuse_reports(why))

    def rejoined(self, index: int) -> None:
        """An agent's connection is new."""
        if index in self.needed:
            self._tell(index, self.needed[index])
        if self._save is not None and self._save.handed_over:
            self._tell(index, {"op": peer_protocol.UPLOAD, "n": self._barrier.current})
        self._carry_out(self._barrier.rejoined(index))

    def logged(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """log() of rank 0."""
        for row in rows:
            self._progress(row)
            self._history.log(
                {
                    "position": self.progress["position"],
                    "step": row.get("step"),
                    "metrics": row["metrics"],
                    "time": row["time"],
                }
            )
        self._site.changed(False)

    def _resize(self, world_size: int) -> None:
        if world_size > 0 and world_size != self._barrier.world_size and self._barrier.current == 0:
            self._barrier.world_size = world_size

    # -- outputs -------------------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: List[barrier.Output]) -> None:
        """In order, also what follows from them."""
        self._outputs.extend(outputs)
        if self._busy:
            return
        self._busy = True
        try:
            while self._outputs:
                self._do(self._outputs.popleft())
        finally:
            self._busy = False
        self._arm()

    def _do(self, output: barrier.Output) -> None:
        if isinstance(output, barrier.Release):
            self._release(output)
        elif isinstance(output, barrier.Fail):
            self._fail(output)
        elif isinstance(output, barrier.Admit):
            n = output.n
            self._commits.admit(lambda: self._carry_out(self._barrier.admitted(n)))
        elif isinstance(output, barrier.Stage):
            self._stage(output)
        elif isinstance(output, barrier.Persist):
            self._persist(output)
        elif isinstance(output, barrier.Commit):
            self._hand_over()
        else:
            self.missing.name(
                output, max(1, self._barrier.world_size // self._facts.workers), lambda: self._barrier.current
            )

    def _arm(self) -> None:
        """One timer for time-outs and warnings; it is left standing when it is early, so that a report() does not
        pay for it.
        """
        deadline = self._barrier.deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._barrier.tick(self._loop.time()))

    def _release(self, output: barrier.Release) -> None:
        saved: Optional[Dict[str, Any]] = None
        warnings: List[str] = []
        if output.ranks is None:
            self._answered, self._answer_blob = output.n, self._blob if output.kind == contract.KIND_BROADCAST else b""
        if output.ranks is None and output.kind == contract.KIND_REPORT:
            saved, warnings = self._released_report(output)
        elif output.saved and self._parent is not None:
            saved = {"id": str(self._parent), "uri": self._site.uri(str(self._parent)), "level": contract.STAGED}
        message = {
            "op": peer_protocol.RELEASE,
            "n": output.n,
            "ranks": output.ranks,
            "stop": output.stop,
            "checkpoint": saved,
            "warnings": warnings,
        }
        self._tell(None, message, self._answer_blob)

    def _released_report(self, output: barrier.Release) -> tuple[Optional[Dict[str, Any]], List[str]]:
        save, self._save = self._save, None
        if save is None:
            self._reports += 1
        saved: Optional[Dict[str, Any]] = None
        warnings: List[str] = []
        id_: Optional[str] = None
        if save is not None and save.note is not None:
            id_, warnings, self._parent = str(save.id), save.warnings, save.id
            durable = save.handed_over and self._site.storage is not None
            saved = {"id": id_, "uri": self._site.uri(id_), "level": contract.DURABLE if durable else contract.STAGED}
            if not save.handed_over:
                self._commits.released(save.note, set(save.staged_at.values()))
        now = time.time()
        row = self._row
        self.progress["position"] = position = self._facts.base_position + self._reports
        self._progress({**row, "time": now})
        self._history.report({"position": position, "index": self._reports, **row, "time": now, "checkpoint": id_})
        self._metadata.clear()
        self._site.changed(False)
        return saved, warnings

    def _fail(self, output: barrier.Fail) -> None:
        self._answered = max(self._answered, output.n)
        self._save = None
        self._metadata.clear()
        self._commits.withdraw()
        message = {
            "op": peer_protocol.FAIL,
            "n": output.n,
            "ranks": output.ranks,
            "reason": output.reason,
            "message": output.message,
            "about": output.about,
        }
        if output.reason == contract.FAIL_RANK_GONE:
            # Before the refused are told: theirs are the ends that follow.
            self._note_needed(output)
        self._tell(None, message)

    def _note_needed(self, output: barrier.Fail) -> None:
        each = max(1, self._barrier.world_size // self._facts.workers)
        for index in sorted({rank // each for rank in output.about} - self.needed.keys()):
            ranks = [rank for rank in output.about if rank // each == index]
            self.needed[index] = {"op": peer_protocol.NEEDED, "ranks": ranks, "message": output.message}
            self._tell(index, self.needed[index])

    def _stage(self, output: barrier.Stage) -> None:
        if self._save is None:
            # Counted here, not at the release: an identity is used once, also when its report fails.
            self._reports += 1
            self._save = _Save(CheckpointId(self._facts.run, self._facts.attempt, self._reports))
        self._tell_agents(output.indices, {"op": peer_protocol.STAGE, "n": output.n, "id": str(self._save.id)})

    def _persist(self, output: barrier.Persist) -> None:
        save = self._save
        assert save is not None
        if save.note is None:
            note = self._make_note(save)
            save.note = note.to_json()
            size = sum(len(f.path) + 16 for f in note.files)
            if size > names.LISTING_LIMIT:
                self._carry_out(self._barrier.stage_failed(0, output.n, names.too_many(len(note.files), size)))
                return
            if self._site.config.spec.strict and save.warnings:
                self._refuse(output.n, save.warnings)
                return
            if self._site.config.spec.strict and note.duplicates:
                save.comparison = Comparison(note, save.staged_at)
        if save.comparison is None:
            self._tell_agents(output.indices, {"op": peer_protocol.PERSIST, "n": output.n}, pack(save.note))
            return
        for index in output.indices:
            if index in save.comparison.waiting:
                self._tell(
                    index,
                    {
                        "op": peer_protocol.COMPARE,
                        "n": output.n,
                        "id": str(save.id),
                        "paths": save.comparison.questions[index],
                    },
                )

    def _tell_agents(self, indices: Sequence[int], message: wire.Message, blob: bytes = b"") -> None:
        """What is for all of them is encoded once."""
        if len(indices) == self._facts.workers:
            self._tell(None, message, blob)
            return
        for index in indices:
            self._tell(index, message, blob)

    def _refuse(self, n: int, differences: Sequence[str]) -> None:
        """strict: what would be a warning fails the report, before anybody was told that it is saved."""
        self._carry_out(
            self._barrier.stage_failed(
                0, n, f"Nothing was saved, as spec.checkpoint.strict is set: {'; '.join(differences)}"
            )
        )

    def _make_note(self, save: _Save) -> ReleaseNote:
        merged = merge(save.listings)
        save.warnings += merged.warnings
        row = self._row
        return ReleaseNote(
            id=save.id,
            parent=self._parent,
            step=row.get("step"),
            total_steps=row.get("total_steps"),
            epoch=row.get("epoch"),
            metrics=row.get("metrics") or {},
            time=time.time(),
            world_size=self._barrier.world_size,
            position=self._facts.base_position + self._reports,
            files=merged.files,
            duplicates=merged.duplicates,
            metadata=self._metadata[min(self._metadata)] if self._metadata else {},
        )

    def _hand_over(self) -> None:
        """SYNC: every agent stores its share at once, the ranks are answered when the manifest is there."""
        save = self._save
        assert save is not None and save.note is not None
        save.handed_over = True
        self._tell(None, {"op": peer_protocol.UPLOAD, "n": self._barrier.current})
        self._commits.released(save.note, set(save.staged_at.values()))
        if self._site.storage is None:
            self._carry_out(self._barrier.committed(self._barrier.current))

    def _progress(self, row: Mapping[str, Any]) -> None:
        for name in ("step", "total_steps", "epoch"):
            if row.get(name) is not None:
                self.progress[name] = row[name]
        self.progress["metrics"] = shown_metrics({**self.progress["metrics"], **(row.get("metrics") or {})})
        self.progress["time"] = row["time"]
        self._watch_for_nan(row)

    def _watch_for_nan(self, row: Mapping[str, Any]) -> None:
        """The first metric that is no number any more is kept for those who look on, and counted."""
        found = nonfinite.first(row.get("metrics") or {})
        if found is None:
            return
        seen = self.progress.get("non_finite")
        if seen is not None:
            self.progress["non_finite"] = {**seen, "count": seen["count"] + 1}
            return
        self.progress["non_finite"] = {
            "metric": found[0],
            "value": found[1],
            "step": row.get("step"),
            "position": self.progress["position"],
            "count": 1,
        }
