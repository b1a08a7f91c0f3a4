"""The loop: a job whose turn it is gets observed, decided upon, and what was decided carried out.

Runs the same over the in-process cluster and over Kubernetes. Events are hints about when to look, never what to do.
Nothing that decides is remembered between turns: only the sentence that was logged last, what became of the creates
(`creates.py`), and the last look at jobs that run, from which mere progress is written without another one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import Cluster, ClusterError, Conflict, JobKey, NotFound
from trainjob_operator.core.decide import decide
from trainjob_operator.core.model import AgentView, Decision, Installation, Observed, PodView
from trainjob_operator.core.moments import elapsed
from trainjob_operator.core.progress import PROGRESS_EVERY_S
from trainjob_operator.loop.apply import apply, report_unreadable, write_status
from trainjob_operator.loop.creates import Creates
from trainjob_operator.loop.observe import heard_since, observe
from trainjob_operator.loop.shown import ShownLimit, is_only_shown, only_progress
from trainjob_operator.loop.workqueue import Backoff, Share, WorkQueue
from trainjob_operator.manifests import UnreadableJob

TURN_TIMEOUT_S = 120.0
"""A turn that takes longer is given up and tried again; each call has a shorter time-out of its own."""
PROGRESS_LOOK_S = 1.0
"""Progress of a job that was not looked at yet asks for a turn after so long."""
WATCH_BACKOFF = Backoff(first_s=0.2, longest_s=10.0)


class Agents(Protocol):
    """What the loop needs of the coordinator."""

    listening_since: datetime

    def listen(self, enqueue: Callable[[JobKey, float], None], show_progress: Callable[[JobKey], None]) -> None:
        """Ask for turns here, and for progress to be shown."""
        ...

    def views(self, key: JobKey) -> Mapping[str, AgentView]:
        """What the job's agents last said, by pod UID."""
        ...

    def commit(self, job: TrainJob, pods: Iterable[PodView]) -> None:
        """Answer agents from this job."""
        ...

    def forget(self, key: JobKey) -> None:
        """There is no such job."""
        ...


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn that is over."""

    key: JobKey
    seconds: float
    outcome: str = "error"
    """ok | conflict | error"""
    job: TrainJob | None = None
    """As it stands after an `ok` turn."""

    @property
    def gone(self) -> bool:
        """A read found no such job."""
        return self.outcome == "ok" and self.job is None


class Reconciler:
    """`run` until cancelled. `on_job` sees each job after its turn: the launcher's view. `on_turn` sees each turn:
    the operator's metrics.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Agents,
        installation: Installation,
        clock: Clock,
        *,
        workers: int = 4,
        log: logging.Logger | None = None,
        rng: random.Random | None = None,
        on_job: Callable[[TrainJob], None] | None = None,
        on_turn: Callable[[Turn], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._installation = installation
        self._clock = clock
        self._workers = workers
        self._log = log or logging.getLogger(__name__)
        self._rng = rng or random.Random()
        self._on_job = on_job
        self._on_turn = on_turn
        self._begun: dict[JobKey, float] = {}
        """When the turns that run now began."""
        # A webhook of one namespace that hangs must not take every worker.
        share = Share[JobKey](group=lambda key: key[0], most=max(1, workers - max(1, workers // 4)))
        self._queue: WorkQueue[JobKey] = WorkQueue(clock, self._rng, share=share)
        self._progress: WorkQueue[JobKey] = WorkQueue(clock, self._rng)
        """Jobs whose progress is to be written: beside the turns, so that no failure waits for it."""
        self._seen: dict[JobKey, Observed] = {}
        """The last look at each job that runs, as committed; all that writing its progress takes."""
        self._shown = ShownLimit()
        self._said: dict[JobKey, str] = {}
        self._creates: defaultdict[JobKey, Creates] = defaultdict(Creates)
        coordinator.listen(self._queue.add_after, self.show_progress)

    def enqueue(self, key: JobKey) -> None:
        """Ask for a turn of this job now."""
        self._queue.add(key)

    def show_progress(self, key: JobKey) -> None:
        """There is mere progress of this job: written when it is due, without a turn."""
        seen = self._seen.get(key)
        if seen is None:
            self._queue.add_after(key, PROGRESS_LOOK_S)
            return
        written_at = seen.job.status.progress.written_at
        due_s = PROGRESS_EVERY_S if written_at is not None else 0.0
        age_s = elapsed(self._clock.steady(), written_at) if written_at is not None else 0.0
        self._progress.add_after(key, min(max(0.0, due_s - age_s), PROGRESS_EVERY_S))

    def waiting(self) -> int:
        """Jobs that wait for a turn, those due later included."""
        return len(self._queue)

    def oldest_turn_s(self) -> float:
        """For how long the longest running turn has run; 0: none runs."""
        return self._clock.monotonic() - min(self._begun.values()) if self._begun else 0.0

    async def run(self) -> None:
        """Watch the cluster and take turns until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="watch")
            tasks.create_task(self._write_progress(), name="progress")
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"turns-{number}")

    async def _watch(self) -> None:
        """Every key that the watch names gets a turn. A watch that fails is opened again; it then names every job."""
        failures = 0
        while True:
            try:
                async for key in self._cluster.watch():
                    failures = 0
                    self._queue.add(key)
            except ClusterError as error:
                failures += 1
                self._log.warning("watch failed, opening it again: %s", error)
            await self._clock.sleep_until(self._clock.monotonic() + WATCH_BACKOFF.delay(max(1, failures), self._rng))

    async def _work(self) -> None:
        """One worker's top loop: no job's trouble may end it."""
        while True:
            key = await self._queue.get()
            self._begun[key] = self._clock.monotonic()
            outcome, job = "error", None
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    job = await self.turn(key)
                outcome = "ok"
            except Conflict as error:
                outcome = "conflict"
                self._queue.retry(key)
                self._log.debug("%s/%s: somebody wrote first, looking again: %s", *key, error, extra=_about(key))
            except (ClusterError, TimeoutError) as error:
                rest = self._queue.retry(key, getattr(error, "retry_after_s", 0.0))
                self._log.warning(
                    "%s/%s: turn failed, next in %.1f s: %s", *key, rest, error or "it took too long", extra=_about(key)
                )
            except Exception:
                rest = self._queue.retry(key)
                self._log.exception("%s/%s: turn failed unexpectedly, next in %.1f s", *key, rest, extra=_about(key))
            finally:
                self._queue.done(key)
                seconds = self._clock.monotonic() - self._begun.pop(key)
            if self._on_turn is not None:
                self._on_turn(Turn(key=key, seconds=seconds, outcome=outcome, job=job))

    async def _write_progress(self) -> None:
        """The one worker for progress; whatever it cannot do is left to a turn."""
        while True:
            key = await self._progress.get()
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    await self._progress_of(key)
            except (ClusterError, TimeoutError):
                self._queue.add(key)
            except Exception:
                self._log.exception("%s/%s: progress could not be written", *key, extra=_about(key))
                self._queue.add(key)
            finally:
                self._progress.done(key)

    async def _progress_of(self, key: JobKey) -> None:
        """Write it from the last look and what the agents say now. Anything else that this shows is a turn's to do.

        The write is fenced by the version of the job that was looked at, so an old look can do no harm.
        """
        seen = self._seen.get(key)
        if seen is None or key in self._begun:
            return  # a turn that runs takes the progress along
        heard = heard_since(seen, self._coordinator.views)
        decision = decide(heard, self._clock.steady())
        if not only_progress(seen.job.status, decision):
            self._queue.add(key)
            return
        job = await write_status(self._cluster, seen.job, decision)
        if decision.progress_after is not None:
            self._progress.add_after(key, decision.progress_after.total_seconds())
        if self._seen.get(key) is seen and job is not seen.job:
            self._seen[key] = replace(seen, job=job)
            self._coordinator.commit(job, seen.pods)
            if self._on_job is not None:
                self._on_job(job)

    async def turn(self, key: JobKey) -> TrainJob | None:
        """Look, decide, act, and ask for the next turn; the job as it stands then, None: there is none. Raises what
        the cluster raises.
        """
        creates = self._creates[key]
        try:
            seen = await observe(
                self._cluster,
                key,
                self._coordinator.views,
                self._coordinator.listening_since,
                self._clock.steady(),
                creates.taken,
            )
        except NotFound:
            self._gone(key)
            return None
        except UnreadableJob as error:
            # Only an edit can help, and an edit asks for a turn.
            self._say(key, str(error))
            await report_unreadable(self._cluster, error, self._clock.steady())
            self._queue.succeeded(key)
            return None
        observed = creates.seen(seen)
        # What was read is committed too: after a restart agents hear of the running attempt without a write.
        self._coordinator.commit(observed.job, observed.pods)
        decision = decide(observed, self._clock.steady())
        self._say(key, decision.why)
        if is_only_shown(observed.job.status, decision):
            pause_s = self._shown.admit(key, self._clock.monotonic())
            if pause_s > 0.0:
                decision = replace(decision, status=observed.job.status, events=())
                self._queue.add_after(key, pause_s)
        job = await self._apply(key, observed, decision)
        self._queue.succeeded(key)
        if decision.progress_after is not None:
            self._progress.add_after(key, decision.progress_after.total_seconds())
        if decision.requeue_after is not None:
            self._queue.add_after(key, decision.requeue_after.total_seconds())
        return job

    async def _apply(self, key: JobKey, observed: Observed, decision: Decision) -> TrainJob:
        """Carry the decision out; the job as committed. Creates that failed are no failed turn: what runs is looked
        after, and they are tried again. Raises what else failed.
        """
        creates = self._creates[key]
        now_due, rest_s = creates.due(decision, observed, self._clock.monotonic())
        told = creates.refused_deletes
        done = await apply(self._cluster, observed, now_due, self._installation, told)
        known, unknown = set(creates.refusals or ()), creates.unanswered
        again_s = creates.note(done, rest_s is None, observed, self._clock.monotonic())
        for pause_s in (rest_s, again_s):
            if pause_s is not None:
                self._queue.add_after(key, pause_s)
        trouble = done.creates
        if trouble is not None and (set(trouble.refusals) != known or (creates.unanswered and not unknown)):
            self._log.warning("%s/%s: pods or Service cannot be created: %s", *key, trouble.first, extra=_about(key))
        self._coordinator.commit(done.job, observed.pods)
        self._remember(key, replace(observed, job=done.job))
        if self._on_job is not None:
            self._on_job(done.job)
        if done.error is not None:
            raise done.error
        return done.job

    def _remember(self, key: JobKey, seen: Observed) -> None:
        attempt = seen.job.status.attempt
        if attempt is not None and attempt.state == "Running" and not seen.job.status.finished:
            self._seen[key] = seen
        else:
            self._seen.pop(key, None)

    def _gone(self, key: JobKey) -> None:
        self._coordinator.forget(key)
        self._said.pop(key, None)
        self._creates.pop(key, None)
        self._seen.pop(key, None)
        self._queue.succeeded(key)

    def _say(self, key: JobKey, why: str) -> None:
        if self._said.get(key) != why:
            self._said[key] = why
            self._log.info("%s/%s: %s", *key, why, extra={**_about(key), "why": why})


def _about(key: JobKey) -> dict[str, str]:
    """Which job a log line is about."""
    return {"job": f"{key[0]}/{key[1]}"}
