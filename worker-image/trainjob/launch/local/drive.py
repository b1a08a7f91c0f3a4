"""The control side of one local job, in one event loop: cluster, coordinator, reconciler and kubelet, from creation to
the last pod.

Called by `local.py` in a thread of its own. It asks for nothing that a person with kubectl could not: it creates the
object, suspends it to stop it, and looks at its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records.identity import is_newer
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import slow_start
from trainjob.launch.local.kubelet import LocalKubelet, Machine
from trainjob.launch.local.registry.records import STOPPED
from trainjob.launch.outcome import ask_storage
from trainjob.launch.outcome.log_choice import rank_of
from trainjob.screen.changes import freshest
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import Condition, TrainJob, TrainJobStatus
from trainjob_operator.agents.callers import bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.agents.owners import owner_in
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import ClusterError
from trainjob_operator.core import lifecycle
from trainjob_operator.core.conditions import Says, condition
from trainjob_operator.core.groups.agents import SUCCESS
from trainjob_operator.core.model import AgentView, Installation, Observed
from trainjob_operator.core.progress import checkpoints, progress_of, take_progress
from trainjob_operator.core.size.start import EXIT_WAIT_S
from trainjob_operator.core.status import close
from trainjob_operator.core.turn import Turn
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.observe import observe
from trainjob_operator.loop.reconciler import Reconciler
from trainjob_operator.memory import MemoryCluster

END_S = 120.0
"""How long the agents of a finished job may take to store their last checkpoint and end."""

LONGEST_STOP_S = EXIT_WAIT_S + contract.DEFAULT_GRACE_S
"""From the wish to the last agent's end: what its agents have to end by themselves, and then from SIGTERM on."""

SHOW_EVERY_S = 0.3
"""How often progress is shown to those who look on."""
LOOKS = 40
"""So often after a change those who follow the job's reports on storage are told to look: they come there behind it."""


class Stop(IntEnum):
    """How to stop before the job has finished."""

    NO = 0
    CLEANLY = 1
    AT_ONCE = 2


class Driver:
    """Drives one job; `run` in one thread, `stop` from any."""

    def __init__(self, job: TrainJob, machine: Machine, token: str, stop_wanted: Callable[[], bool]) -> None:
        """`stop_wanted` is asked a few times a second: whether somebody else than the caller wants the job's end."""
        self._stop_wanted = stop_wanted
        self._clock = SystemClock()
        self.asked_to_stop = False
        """It did."""
        self._job = job
        self._machine = machine
        self._token = token
        self._mutex = threading.Lock()
        self._wanted = Stop.NO
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event
        self._publish: Callable[..., None]
        self._shown: TrainJobStatus | None = None
        self._looks = 0
        """How many are left."""
        self._slow = 0
        """The attempt of whose slow start was told."""
        self._waits = False
        """It was told that agents wait for a warm process."""
        self._printed = False
        """A rank has printed a line."""
        self.is_full: Callable[[], bool] = lambda: False
        """Whether more lines are published than are taken for now."""

    def run(self, publish: Callable[..., None]) -> TrainJob:
        """Until the job has ended and no agent is left; the object as it was last. `publish(kind, **content)` gets
        the events.
        """
        self._publish = publish
        return asyncio.run(self._main())

    @property
    def job(self) -> TrainJob:
        """The object as it was last."""
        return self._job

    def stop(self, how: Stop) -> None:
        """Cleanly: suspend the job and wait for its agents. At once: kill them."""
        with self._mutex:
            self._wanted = max(self._wanted, how)
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just closed: there is nothing left to stop
                    self._loop.call_soon_threadsafe(self._changed.set)

    async def _main(self) -> TrainJob:
        self._changed = asyncio.Event()
        with self._mutex:
            self._loop = asyncio.get_running_loop()
        clock = self._clock
        cluster = MemoryCluster(clock)
        coordinator = Coordinator(
            clock=clock,
            authenticate=bearer(self._token),
            find_owner=owner_in(cluster),
            master_key=secrets.token_bytes(32),
        )
        url = await coordinator.start("127.0.0.1", 0)
        # -P: a queue.py in the user's folder must not become the agent's.
        installation = Installation(
            coordinator_url=url,
            agent_command=(sys.executable, "-P", "-m", "trainjob.launch.local.pod"),
            any_master_port=True,
        )
        means = Means(cluster=cluster, agents=coordinator, clock=clock)
        reconciler = Reconciler(means, installation, hears=Hears(on_job=self._saw))
        kubelet = LocalKubelet(
            cluster,
            self._machine,
            on_line=self._saw_line,
            on_event=self._saw_event,
            is_full=lambda: self.is_full(),
        )
        tasks = [
            asyncio.create_task(reconciler.run(), name="reconciler"),
            asyncio.create_task(kubelet.run(), name="kubelet"),
        ]
        try:
            cluster.create_job(self._job.to_json())
            tasks.append(
                asyncio.create_task(self._show_progress(cluster, coordinator, kubelet), name="view of the progress")
            )
            await self._attend(cluster, kubelet, tasks)
            await self._show_end(coordinator)
        finally:
            # First those who would answer the kills with new pods.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await kubelet.stop()
            await coordinator.stop()
        return self._job

    async def _attend(self, cluster: MemoryCluster, kubelet: LocalKubelet, tasks: list[asyncio.Task[None]]) -> None:
        """Until the job finished and its agents ended, or a stop is carried out."""
        suspended = False
        while not self._job.status.finished:
            await self._next_change(tasks)
            if self._wanted is Stop.NO and self._stop_wanted():
                self.asked_to_stop = True
                self._publish("note", text="stopping, as `tj stop` asks: ranks end, what is staged is stored")
                self._wanted = Stop.CLEANLY
            if self._wanted is Stop.AT_ONCE:
                return
            if self._wanted is Stop.CLEANLY and not suspended:
                suspended = True
                # Who presses Ctrl-C does not want to wait for the next checkpoint.
                at_once = {"suspend": True, "boundaryTimeoutSeconds": 0}
                cluster.update_job_spec(self._job.metadata.namespace, self._job.metadata.name, at_once)
            if suspended and self._job.status.holds("Suspended") and not kubelet.alive:
                return
        await self._unless_stopped(kubelet.ended(END_S))

    async def _show_end(self, coordinator: Coordinator) -> None:
        """Of a job that was stopped: its agents stored what they held after its attempt had ended, and may have come to
        the end of all: a turn that takes their word would come too late, and the word itself may have been lost.
        """
        if self._job.status.finished or not self._job.status.holds("Suspended"):
            return
        has_completed = await asyncio.to_thread(self._has_completed, coordinator.views(self._job.key).values())
        status = self._job.status
        if status.finished:  # meanwhile: a turn took that word in time
            return
        views, score = coordinator.views(self._job.key).values(), self._job.spec.checkpoint.score_attribute
        status = as_stored_at_the_end(status, views, score)
        self._job = self._job.model_copy(update={"status": status})
        if has_completed:
            self._job = completed(self._job, datetime.now(UTC))
            self._show(self._job)
        else:
            self._show(self._job.model_copy(update={"status": status.model_copy(update={"phase": STOPPED})}))

    def _has_completed(self, views: Collection[AgentView]) -> bool:
        """By an agent's word, else by the run's end record. Blocks for seconds where storage is away."""
        attempt, storage = self._job.status.attempt, defaults.job_storage(self._job)
        run = None if attempt is None else attempt.run
        if run is None:
            return False
        if any(view.completed and view.run == run for view in views):
            return True
        return storage is not None and ask_storage.ask(storage, lambda store: runs.ended(store, run))[0] is True

    async def _next_change(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for the object to change or a stop to be asked for; an end of the machinery is an error."""
        changed = asyncio.create_task(self._changed.wait(), name="change of the job")
        await asyncio.wait({changed, *tasks}, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()
        for task in tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                raise LaunchError(
                    f"the local {task.get_name()} ended: {error!r}; this is a fault of TrainJob, please report it"
                ) from error

    async def _unless_stopped(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        while not task.done() and self._wanted is not Stop.AT_ONCE:
            await asyncio.wait({task}, timeout=0.1)
        task.cancel()

    def _saw(self, job: TrainJob) -> None:
        """A committed object, from the reconciler. Its progress may be older than what was seen of it by then."""
        if job.metadata.resource_version != self._job.metadata.resource_version:
            self._job = freshest(self._job, job)
            self._show(self._job)
        self._changed.set()

    async def _show_progress(self, cluster: MemoryCluster, coordinator: Coordinator, kubelet: LocalKubelet) -> None:
        """The object's progress is written seldom, for an API server's sake; a person who looks on gets it as the
        agents tell it.
        """
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            if self._job.status.finished:
                continue
            self._tell_of_a_wait(kubelet.taking_s)
            try:
                observed = await observe(cluster, self._job.key, coordinator.views, coordinator.listening_since)
            except ClusterError:  # it changed meanwhile, or is gone: the next look is not far
                continue
            if self._job.status.finished:  # meanwhile: this look may know less than what was shown at its end
                continue
            turn = Turn.of(replace(observed, job=self._job), self._clock.steady())  # as the reconciler's are
            self._tell_of_a_slow_start(turn)
            take_progress(turn, at_end=True)
            status = self._job.status.model_copy(
                update={"progress": turn.status.progress, "checkpoint": turn.status.checkpoint}
            )
            self._job = self._job.model_copy(update={"status": status})
            if not self._show(self._job) and self._looks:
                self._looks -= 1
                self._publish("look", job=self._job)

    def _tell_of_a_wait(self, taking_s: float) -> None:
        if taking_s > slow_start.AFTER_S and not self._waits and self._job.status.attempt is None:
            self._waits = True
            self._publish("note", text=slow_start.WAITS_FOR_KEPT)

    def _tell_of_a_slow_start(self, turn: Turn) -> None:
        attempt = turn.running
        if attempt is None or attempt.number == self._slow:
            return
        said = slow_start.sentence(turn.job, list(turn.words()), turn.now, printed=self._printed)
        if said is not None:
            self._slow = attempt.number
            self._publish("note", text=said)

    def _show(self, job: TrainJob) -> bool:
        """Whether it is another than was shown."""
        if job.status == self._shown:
            return False
        self._shown, self._looks = job.status, LOOKS
        self._publish("status", job=job)
        return True

    def _saw_line(self, pod: str, line: str) -> None:
        self._printed = self._printed or rank_of(line) is not None
        self._publish("line", text=line, pod=pod)

    def _saw_event(self, event: dict[str, Any]) -> None:
        self._publish(
            "event", text=f"{event.get('reason')}: {event.get('message')}", warning=event.get("type") == "Warning"
        )


def completed(job: TrainJob, now: datetime) -> TrainJob:
    """The job, complete."""
    turn = Turn.of(Observed(job=job), now)
    lifecycle.complete(turn, SUCCESS)
    return job.model_copy(update={"status": close(turn, lambda _: 0)})


def as_stored_at_the_end(
    status: TrainJobStatus, views: Collection[AgentView], score: str | None = None
) -> TrainJobStatus:
    """The status of a job that was stopped, with what its agents told of checkpoints and progress after its attempt had
    ended.
    """
    checkpoint, progress = status.checkpoint, status.progress
    for view in views:
        if view.progress is not None and view.progress.get("position", 0) > progress.position:
            progress = progress_of(progress, view.progress, view.heard_at, score)
        told = checkpoints(checkpoint, view)
        if told.latest and (checkpoint.latest is None or is_newer(told.latest.id, checkpoint.latest.id)):
            checkpoint = told
    last = None if status.attempt is None else status.attempt.number
    left = next((view.checkpoint_trouble for view in views if view.attempt == last and view.checkpoint_trouble), None)
    conditions = status.conditions if left is None else _with_what_was_not_stored(status, left)
    return status.model_copy(update={"checkpoint": checkpoint, "progress": progress, "conditions": conditions})


def _with_what_was_not_stored(status: TrainJobStatus, why: str) -> list[Condition]:
    """Without an attempt the job lacks nothing any more; who looks at it wants to know all the same."""
    said = Says("True", contract.REASON_CHECKPOINT_FAILING, why)
    generation = max((each.observed_generation or 0 for each in status.conditions), default=0)
    found = condition(status.condition("Degraded"), "Degraded", said, datetime.now(UTC), generation)
    return [*(each for each in status.conditions if each.type != "Degraded"), found]
