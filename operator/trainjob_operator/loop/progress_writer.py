"""Mere progress of a job: written when it is due, from the last look and what the agents say, without a turn.

Used by the reconciler, which leaves here its last look at each job that runs. It works beside the turns, so that no
failure waits for progress; whatever it cannot do is left to a turn. All jobs share one allowance: where many report,
each is written less often, with what is newest then.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import ClusterError, JobKey, is_older
from trainjob_operator.core.decide import decide
from trainjob_operator.core.model import Decision, Observed
from trainjob_operator.core.moments import elapsed
from trainjob_operator.core.progress import PROGRESS_EVERY_S
from trainjob_operator.loop.allowance import Allowance
from trainjob_operator.loop.known import Known
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.observe import heard_since
from trainjob_operator.loop.shown import only_progress
from trainjob_operator.loop.status_writes import write_status
from trainjob_operator.loop.workqueue import Share, WorkQueue

WITHIN_S = 120.0
"""A write that takes longer is given up and left to a turn."""
WRITES_A_SECOND, WRITES_AT_ONCE = 25.0, 25.0
"""Of all jobs together: each write costs the operator a decision, a call and its echo in the watch, and an API server
its share; 250 jobs that report all the time are written every PROGRESS_EVERY_S, 1,000 every 40 s.
"""
WRITERS = 3
"""Writes at once; one of them is always left to other namespaces: one whose writes hang keeps no other waiting."""
PROGRESS_LOOK_S = 1.0
"""Progress of a job that was not looked at yet asks for a turn after so long."""


class Turns(Protocol):
    """What the writer needs of the reconciler."""

    def ask(self, key: JobKey, after_s: float) -> None:
        """Ask for a turn of this job after so long."""
        ...

    def has_turn(self, key: JobKey) -> bool:
        """Whether one runs."""
        ...

    def is_ours(self, namespace: str) -> bool:
        """Whether its jobs are ours to look after, as far as is known without asking anybody."""
        ...


class ProgressWriter:
    """`run` until cancelled."""

    def __init__(self, means: Means, known: Known, turns: Turns, hears: Hears) -> None:
        self._cluster, self._coordinator, self._clock = means.cluster, means.agents, means.clock
        self._log = means.log
        self._known, self._turns, self._hears = known, turns, hears
        self._queue: WorkQueue[JobKey] = WorkQueue(means.clock, means.rng)
        share = Share[JobKey](group=lambda key: key[0], most=WRITERS - 1)
        self._due: Allowance[JobKey] = Allowance(means.clock, share, WRITES_A_SECOND, WRITES_AT_ONCE)
        self._seen: dict[JobKey, Observed] = {}
        """The last look at each job that runs, as committed; all that writing its progress takes."""

    def show(self, key: JobKey) -> None:
        """There is mere progress of this job: written when it is due, without a turn."""
        if key in self._due:
            return  # it is about to be written, with what is newest then
        seen = self._seen.get(key)
        if seen is None:
            self._turns.ask(key, PROGRESS_LOOK_S)
            return
        written_at = seen.job.status.progress.written_at
        due_s = PROGRESS_EVERY_S if written_at is not None else 0.0
        age_s = elapsed(self._clock.steady(), written_at) if written_at is not None else 0.0
        self._queue.add_after(key, min(max(0.0, due_s - age_s), PROGRESS_EVERY_S))

    def remember(self, key: JobKey, seen: Observed) -> TrainJob:
        """The last look, with the job as it was committed then; the job as it is, with progress that was written since
        that look.
        """
        before, attempt = self._seen.pop(key, None), seen.job.status.attempt
        if before is not None and is_older(seen.job, before.job):
            same = before.job.metadata.uid == seen.job.metadata.uid
            seen = replace(seen, job=before.job) if same else before
            attempt = seen.job.status.attempt
        if attempt is not None and attempt.state == "Running" and not seen.job.status.finished:
            self._seen[key] = seen
        return seen.job

    def forget(self, key: JobKey) -> None:
        """The job is gone, or another's to look after."""
        self._seen.pop(key, None)

    def put_off(self, key: JobKey, decision: Decision) -> None:
        """The decision has left progress unwritten that is due later."""
        if decision.progress_after is not None:
            self._queue.add_after(key, decision.progress_after.total_seconds())

    async def run(self) -> None:
        """Write what is due; whatever cannot be done is left to a turn."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._line_up(), name="progress-due")
            for number in range(WRITERS):
                tasks.create_task(self._work(), name=f"progress-{number}")

    async def _line_up(self) -> None:
        while True:
            self._due.put(await self._queue.get())

    async def _work(self) -> None:
        while True:
            key = await self._due.next()
            written = True
            try:
                async with asyncio.timeout(WITHIN_S):
                    written = await self._write(key)
            except (ClusterError, TimeoutError):
                self._known.doubt(key)
                self._turns.ask(key, 0.0)
            except Exception:
                self._log.exception("%s/%s: progress could not be written", *key, extra={"job": f"{key[0]}/{key[1]}"})
                self._turns.ask(key, 0.0)
            finally:
                self._queue.done(key)
                self._due.done(key)
            if not written:
                self._due.give_back()

    async def _write(self, key: JobKey) -> bool:
        """Write it from the last look and what the agents say now; whether there was something to write. Anything else
        that this shows is a turn's to do.

        The write is fenced by the version of the job that was looked at, so an old look can do no harm.
        """
        seen = self._seen.get(key)
        if seen is None:
            return False
        if self._turns.has_turn(key):
            # It takes the progress along, unless that came after its look at the agents.
            self._queue.add_after(key, PROGRESS_LOOK_S)
            return False
        if not self._turns.is_ours(key[0]):
            self._turns.ask(key, 0.0)
            return False
        heard = heard_since(seen, self._coordinator.views)
        decision = decide(heard, self._clock.steady())
        if not only_progress(seen.job.status, decision):
            self._turns.ask(key, 0.0)
            return False
        with self._known.writing(key) as writing:
            job = await write_status(self._cluster, seen.job, decision)
            self._known.written(job)
        if writing.news:
            self._turns.ask(key, 0.0)
        self.put_off(key, decision)
        self._wrote(key, job)
        return job is not seen.job

    def _wrote(self, key: JobKey, job: TrainJob) -> None:
        """A turn beside the write may have left a newer look at the same state meanwhile: its pods and this job go
        together. If it has written, its job is the newer one.
        """
        seen = self._seen.get(key)
        if seen is None or seen.job.metadata.uid != job.metadata.uid or not is_older(seen.job, job):
            return
        self._seen[key] = replace(seen, job=job)
        if not self._turns.has_turn(key):  # it has newer pods
            self._coordinator.commit(job, seen.pods)
        self._hears.on_job(job)
