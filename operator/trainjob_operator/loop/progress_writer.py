"""Mere progress of a job: written when it is due, from the last look and what the agents say, without a turn.

Used by the reconciler, which leaves here its last look at each job that runs. One worker beside the turns, so that no
failure waits for progress; whatever it cannot do is left to a turn.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from trainjob_operator.cluster import ClusterError, JobKey
from trainjob_operator.core.decide import decide
from trainjob_operator.core.model import Decision, Observed
from trainjob_operator.core.moments import elapsed
from trainjob_operator.core.progress import PROGRESS_EVERY_S
from trainjob_operator.loop.apply import write_status
from trainjob_operator.loop.known import Known
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.observe import heard_since
from trainjob_operator.loop.shown import only_progress
from trainjob_operator.loop.workqueue import WorkQueue

WITHIN_S = 120.0
"""A write that takes longer is given up and left to a turn."""
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
        self._seen: dict[JobKey, Observed] = {}
        """The last look at each job that runs, as committed; all that writing its progress takes."""

    def show(self, key: JobKey) -> None:
        """There is mere progress of this job: written when it is due, without a turn."""
        seen = self._seen.get(key)
        if seen is None:
            self._turns.ask(key, PROGRESS_LOOK_S)
            return
        written_at = seen.job.status.progress.written_at
        due_s = PROGRESS_EVERY_S if written_at is not None else 0.0
        age_s = elapsed(self._clock.steady(), written_at) if written_at is not None else 0.0
        self._queue.add_after(key, min(max(0.0, due_s - age_s), PROGRESS_EVERY_S))

    def remember(self, key: JobKey, seen: Observed) -> None:
        """The last look, with the job as it was committed then."""
        attempt = seen.job.status.attempt
        if attempt is not None and attempt.state == "Running" and not seen.job.status.finished:
            self._seen[key] = seen
        else:
            self._seen.pop(key, None)

    def forget(self, key: JobKey) -> None:
        """The job is gone, or another's to look after."""
        self._seen.pop(key, None)

    def put_off(self, key: JobKey, decision: Decision) -> None:
        """The decision has left progress unwritten that is due later."""
        if decision.progress_after is not None:
            self._queue.add_after(key, decision.progress_after.total_seconds())

    async def run(self) -> None:
        """The one worker for progress; whatever it cannot do is left to a turn."""
        while True:
            key = await self._queue.get()
            try:
                async with asyncio.timeout(WITHIN_S):
                    await self._write(key)
            except (ClusterError, TimeoutError):
                self._known.doubt(key)
                self._turns.ask(key, 0.0)
            except Exception:
                self._log.exception("%s/%s: progress could not be written", *key, extra={"job": f"{key[0]}/{key[1]}"})
                self._turns.ask(key, 0.0)
            finally:
                self._queue.done(key)

    async def _write(self, key: JobKey) -> None:
        """Write it from the last look and what the agents say now. Anything else that this shows is a turn's to do.

        The write is fenced by the version of the job that was looked at, so an old look can do no harm.
        """
        seen = self._seen.get(key)
        if seen is None:
            return
        if self._turns.has_turn(key):
            # It takes the progress along, unless that came after its look at the agents.
            self._queue.add_after(key, PROGRESS_LOOK_S)
            return
        if not self._turns.is_ours(key[0]):
            self._turns.ask(key, 0.0)
            return
        heard = heard_since(seen, self._coordinator.views)
        decision = decide(heard, self._clock.steady())
        if not only_progress(seen.job.status, decision):
            self._turns.ask(key, 0.0)
            return
        job = await write_status(self._cluster, seen.job, decision)
        self._known.written(job)
        self.put_off(key, decision)
        if self._seen.get(key) is seen and job is not seen.job:
            self._seen[key] = replace(seen, job=job)
            self._coordinator.commit(job, seen.pods)
            self._hears.on_job(job)
