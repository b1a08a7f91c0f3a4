"""The loop: a job whose turn it is gets observed, decided upon, and what was decided carried out.

Runs the same over the in-process cluster and over Kubernetes. What a turn does rests on the job as it still is, since
its write is bound to the job's resourceVersion. Nothing that decides is remembered between turns (`remembered.py`).
From the last look at jobs that run mere progress is written without another one (`progress_writer.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import ClusterError, Conflict, JobKey, Mark, News, NodeSeen, NotFound, Seen
from trainjob_operator.core.decide import decide
from trainjob_operator.core.model import Decision, Installation, Observed
from trainjob_operator.loop.apply import Applied, apply
from trainjob_operator.loop.authority import strangers
from trainjob_operator.loop.creates import a_share
from trainjob_operator.loop.elsewhere import LOOK_S, Elsewhere
from trainjob_operator.loop.look import Look
from trainjob_operator.loop.means import Hears, Means, Turn
from trainjob_operator.loop.neighbours import Claimed
from trainjob_operator.loop.progress_writer import ProgressWriter
from trainjob_operator.loop.remembered import Remembered
from trainjob_operator.loop.shown import ShownLimit, is_only_shown
from trainjob_operator.loop.status_writes import report_unreadable
from trainjob_operator.loop.workqueue import Backoff, Share, WorkQueue
from trainjob_operator.manifests import UnreadableJob

TURN_TIMEOUT_S = 120.0
"""A turn that takes longer is given up and tried again; each call has a shorter time-out of its own."""
RECHECKS_AT_ONCE, RECHECKS_A_SECOND = 20, 100.0
"""Of all jobs there are, once the watch has listed them: who has news to tell (an agent, an edit) does not wait behind
thousands that rest.
"""
WATCH_BACKOFF = Backoff(first_s=0.2, longest_s=10.0)


class Reconciler:
    """`run` until cancelled. `workers`: turns at once; `claims`: None: all namespaces are ours."""

    def __init__(
        self,
        means: Means,
        installation: Installation,
        *,
        workers: int = 4,
        hears: Hears | None = None,
        claims: Claimed | None = None,
    ) -> None:
        self._cluster, self._coordinator, self._clock = means.cluster, means.agents, means.clock
        self._rng, self._log = means.rng, means.log
        self._installation = installation
        self._workers = workers
        self._hears = hears or Hears()
        self._claims = claims
        self._begun: dict[JobKey, float] = {}
        """When the turns that run now began."""
        # A webhook of one namespace that hangs must not take every worker.
        share = Share[JobKey](group=lambda key: key[0], most=max(1, workers - max(1, workers // 4)))
        self._queue: WorkQueue[JobKey] = WorkQueue(self._clock, self._rng, share=share)
        self._remembered = Remembered()
        self._look = Look(means, self._remembered)
        self._elsewhere = Elsewhere(means, self._remembered, self._say)
        self._progress = ProgressWriter(means, self._remembered.known, self, self._hears)
        self._shown = ShownLimit()
        means.agents.listen(self.ask, self._progress.show, self._queue.hurry)

    def enqueue(self, key: JobKey) -> None:
        """Ask for a turn of this job now."""
        self._queue.add(key)

    def ask(self, key: JobKey, after_s: float) -> None:
        """Ask for a turn of this job after so long."""
        self._queue.add_after(key, after_s)

    def has_turn(self, key: JobKey) -> bool:
        """Whether one runs."""
        return key in self._begun

    def is_ours(self, namespace: str) -> bool:
        """Whether its jobs are ours to look after, as far as is known without asking anybody."""
        return self._claims is None or self._claims.holds(namespace)

    def namespaces(self) -> set[str]:
        """Those of the jobs that were looked at."""
        return {key[0] for key in self._remembered.said}

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
            tasks.create_task(self._progress.run(), name="progress")
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"turns-{number}")

    async def _watch(self) -> None:
        """What the watch tells is known, and each job of which it has news gets a turn. A watch that fails is opened
        again; it then tells of every job.
        """
        failures = 0
        before: set[JobKey] = set()
        while True:
            wished_s = 0.0
            try:
                async for news in self._cluster.watch():
                    if news is Mark.COMPLETE:  # a list that begins may fail all the same
                        failures = 0
                    before = self._hear(news, before)
            except ClusterError as error:
                failures += 1
                wished_s = error.retry_after_s
                self._log.warning("watch failed, opening it again: %s", error)
            rest = max(wished_s, WATCH_BACKOFF.delay(max(1, failures), self._rng))
            await self._clock.sleep_until(self._clock.monotonic() + rest)

    def _hear(self, news: News, before: set[JobKey]) -> set[JobKey]:
        """`before`: jobs that were there before the last BEGIN, and may have gone unseen; the same, after this."""
        match news:
            case Mark.BEGIN:
                before = before | set(self._remembered.said)
                self._remembered.known.begin()
                self._remembered.leaving.begin()
            case Mark.COMPLETE:
                there = self._remembered.known.complete(self._clock.monotonic())
                self._recheck([*sorted(before.difference(there)), *there])
                return set()
            case Seen():
                if self._remembered.known.told(news):
                    self._queue.add(news.key)
            case NodeSeen():
                self._remembered.suspects.node(news)
                if self._remembered.leaving.told(news, self._clock.steady()):
                    for key in self._remembered.known.on_node(news.name):
                        self._queue.add(key)
            case key:
                self._remembered.known.doubt(key)
                self._queue.add(key)
        return before

    def _recheck(self, keys: list[JobKey]) -> None:
        """Look at all of them, some at once and the others in shares."""
        for place, key in enumerate(keys):
            self._queue.add_after(key, max(0, place + 1 - RECHECKS_AT_ONCE) / RECHECKS_A_SECOND)

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
                self._remembered.known.doubt(key)
                self._queue.retry(key)
                self._log.debug("%s/%s: somebody wrote first, looking again: %s", *key, error, extra=_about(key))
            except (ClusterError, TimeoutError) as error:
                self._remembered.known.doubt(key)
                wished_s = error.retry_after_s if isinstance(error, ClusterError) else 0.0
                rest = self._queue.retry(key, wished_s)
                self._log.warning(
                    "%s/%s: turn failed, next in %.1f s: %s", *key, rest, error or "it took too long", extra=_about(key)
                )
            except Exception:
                self._remembered.known.doubt(key)
                rest = self._queue.retry(key)
                self._log.exception("%s/%s: turn failed unexpectedly, next in %.1f s", *key, rest, extra=_about(key))
            finally:
                self._queue.done(key)
                seconds = self._clock.monotonic() - self._begun.pop(key)
            self._hears.on_turn(Turn(key=key, seconds=seconds, outcome=outcome, job=job))

    async def turn(self, key: JobKey) -> TrainJob | None:
        """Look, decide, act, and ask for the next turn; the job as it stands then, None: there is none. Raises what
        the cluster raises.
        """
        try:
            elsewhere = await self._claims.served_by(key[0]) if self._claims is not None else None
            if elsewhere is not None:
                await self._elsewhere.stand_back(key, elsewhere)
                self._progress.forget(key)
                self._queue.succeeded(key)
                self._queue.add_after(key, LOOK_S)
                return None
            observed, decision = await self._look.decided(key, self._installation.coordinator_ca)
        except NotFound:
            self._coordinator.forget(key)
            self._remembered.forget(key)
            self._progress.forget(key)
            self._queue.succeeded(key)
            return None
        except UnreadableJob as error:
            # Only an edit can help, and an edit asks for a turn.
            self._say(key, str(error))
            self._progress.forget(key)
            await report_unreadable(self._cluster, error, self._clock.steady())
            self._queue.succeeded(key)
            return None
        self._say(key, decision.why)
        if is_only_shown(observed.job.status, decision):
            pause_s = self._shown.admit(key, self._clock.monotonic())
            if pause_s > 0.0:
                decision = replace(decision, status=observed.job.status, events=())
                self._queue.add_after(key, pause_s)
        job = await self._apply(key, observed, decision)
        self._queue.succeeded(key)
        self._progress.put_off(key, decision)
        for other in self._remembered.neighbourhood.note(key, decision.standing):
            self._queue.add(other)
        if decision.requeue_after is not None:
            self._queue.add_after(key, decision.requeue_after.total_seconds())
        self._remembered.known.rest(key)
        return job

    async def _apply(self, key: JobKey, observed: Observed, decision: Decision) -> TrainJob:
        """Carry the decision out; the job as committed. Creates that failed are no failed turn: what runs is looked
        after, and they are tried again. Raises what else failed.
        """
        creates, removals = self._remembered.creates[key], self._remembered.removals[key]
        now_due, rest_s = creates.due(decision, observed, self._clock.monotonic())
        now_due, more = a_share(now_due)
        now_due, kept_s = removals.due(now_due, self._clock.monotonic())

        def written(job: TrainJob) -> None:
            self._remembered.known.written(job)
            self._coordinator.commit(job, observed.pods)

        with self._remembered.known.writing(key) as writing, creates.sending(now_due, self._clock.monotonic):
            done = await apply(self._cluster, observed, now_due, self._installation, removals.told, written)
        if writing.news:
            self._queue.add(key)
        known, unknown = set(creates.refusals or ()), creates.unanswered
        again_s = creates.note(done, rest_s is None, observed, self._clock.monotonic())
        retry_s = removals.note(done, kept_s is not None, self._clock.monotonic())
        for pause_s in (rest_s, again_s, kept_s, retry_s):
            if pause_s is not None:
                self._queue.add_after(key, pause_s)
        if more and done.creates is None:
            self._queue.add(key)
        self._remembered.strangers[key] = frozenset(pod.uid for pod in strangers(observed))
        self._learn(key, observed, decision, done)
        trouble = done.creates
        if trouble is not None and (set(trouble.refusals) != known or (creates.unanswered and not unknown)):
            self._log.warning("%s/%s: pods or Service cannot be created: %s", *key, trouble.first, extra=_about(key))
        self._hears.on_job(self._progress.remember(key, replace(observed, job=done.job)))
        await self._tell_authority(key, observed)
        if done.error is not None:
            raise done.error
        return done.job

    async def _tell_authority(self, key: JobKey, observed: Observed) -> None:
        ca, now = self._installation.coordinator_ca, self._clock.monotonic()
        told, again_s = await self._remembered.authority.tell(self._cluster, observed, ca, now)
        self._remembered.known.created(key, told)
        if again_s is not None:
            self._queue.add_after(key, again_s)

    def _learn(self, key: JobKey, observed: Observed, decision: Decision, done: Applied) -> None:
        """What our own writes changed is known without the watch, and asks for a turn if there is more to do."""
        if done.creates is not None or done.error is not None:
            self._remembered.known.doubt(key)
        if done.service is not None:
            self._remembered.known.served(key, done.service, self._clock.monotonic())
        self._remembered.known.written(done.job)
        self._remembered.known.created(key, done.created)
        if done.created or done.service is not None:
            # The watch's word of them will be no news, and what they change is to be shown.
            self._queue.add(key)
        if done.job is observed.job:
            return
        again = decide(replace(observed, job=done.job), self._clock.steady())
        if again.status != done.job.status or not set(again.actions) <= set(decision.actions):
            self._queue.add(key)
        elif again.requeue_after is not None:
            self._queue.add_after(key, again.requeue_after.total_seconds())

    def _say(self, key: JobKey, why: str) -> None:
        if self._remembered.said.get(key) != why:
            self._remembered.said[key] = why
            self._log.info("%s/%s: %s", *key, why, extra={**_about(key), "why": why})


def _about(key: JobKey) -> dict[str, str]:
    """Which job a log line is about."""
    return {"job": f"{key[0]}/{key[1]}"}
