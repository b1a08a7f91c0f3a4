"""The operator as a process that can be killed, faults around its calls, and the promises that are checked after each
change.

`Simulation` puts them together: an in-process cluster, a world of puppets, an operator. Used by tests/sim and by those
tests of the shell that need the whole loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from support.puppets import TOKEN, Pace, World
from support.virtual_time import MachineClock, VirtualClock
from trainjob_api import defaults
from trainjob_api.v1alpha1 import Seconds, TrainJob
from trainjob_operator.agents.answers import Answer
from trainjob_operator.agents.callers import bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.agents.owners import owner_in
from trainjob_operator.cluster import ClusterError, Conflict, Manifest, Rejected, Unavailable
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods.naming import parse_slots, spare_slots
from trainjob_operator.loop.means import Means
from trainjob_operator.loop.reconciler import Reconciler
from trainjob_operator.manifests import UnreadableJob, read_job
from trainjob_operator.memory import Call, ChangeType, MemoryCluster, Moment, ObjectChange
from trainjob_operator.memory.store import ChangeFeed
from trainjob_operator.steady_time import SLEW

NAMESPACE = "team"
MASTER_KEY = b"puppet-master-key"
LATENCY_S = 0.001
"""No word arrives in the moment in which it is said."""
ECHO_S = 5.0
RESTART_S = 1.0
"""Between an operator that is killed and the next one."""


def manifest(name: str = "digits", **spec: Any) -> Manifest:
    """A TrainJob with two workers."""
    container = {"name": "trainer", "image": "none", "command": ["python", "train.py"]}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"workers": 2, "template": {"spec": {"containers": [container]}}, **spec},
    }


class FlakyCluster(MemoryCluster):
    """Beyond the fault hook: watch events come late or stop coming, and requests that timed out take effect
    afterwards.
    """

    rng: random.Random | None = None
    late_rate = 0.0
    longest_delay_s = 2.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.late_pods: set[str] = set()
        self.watch_expires = asyncio.Event()
        self.watch_stands_until = 0.0
        """No event comes before then."""
        self._old: tuple[ChangeFeed, int] | None = None
        """(a feed, how much of it was there when it was opened): what a watch cache that lags behind would serve."""
        self._late: set[asyncio.Task[None]] = set()

    async def watch(self) -> Any:
        async for key in super().watch():
            if self.rng is not None:
                if self.rng.random() < 0.01:
                    raise Unavailable("the watch's connection broke")
                if self.watch_expires.is_set():
                    self.watch_expires.clear()
                    raise Unavailable("410 Gone: too old resource version")
                await asyncio.sleep(self.rng.uniform(0.0, self.longest_delay_s) if self.rng.random() < 0.2 else 0.0)
                await asyncio.sleep(max(0.0, self.watch_stands_until - asyncio.get_running_loop().time()))
            yield key

    def remember(self) -> None:
        """The state of this moment is what the next watch begins with, and then it hears of all that came since."""
        self._forget()
        feed = self._store.open_feed()
        self._old = feed, len(feed)

    def _forget(self) -> None:
        if self._old is not None:
            self._store.close_feed(self._old[0])
            self._old = None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[tuple[ChangeFeed, int]]:
        old, self._old = self._old, None
        if old is None:
            with super()._watched() as fresh:
                yield fresh
            return
        try:
            yield old
        finally:
            self._store.close_feed(old[0])

    async def create_pod(self, namespace: str, pod: Manifest, *, strict: bool = False) -> Manifest:
        if self._is_late():
            self.late_pods.add(pod["metadata"]["name"])
            self._later(lambda: super(FlakyCluster, self).create_pod(namespace, pod))
        return await super().create_pod(namespace, pod, strict=strict)

    async def patch_job_status(self, namespace: str, name: str, resource_version: str, status: Manifest) -> Manifest:
        if self._is_late():
            self._later(lambda: super(FlakyCluster, self).patch_job_status(namespace, name, resource_version, status))
        return await super().patch_job_status(namespace, name, resource_version, status)

    def _is_late(self) -> bool:
        return self.rng is not None and self.rng.random() < self.late_rate

    def _later(self, request: Callable[[], Awaitable[object]]) -> None:
        """The request is on its way for longer than its sender waits."""
        assert self.rng is not None
        delay_s = self.rng.uniform(0.0, self.longest_delay_s)

        async def arrive() -> None:
            await asyncio.sleep(delay_s)
            with contextlib.suppress(ClusterError):
                await request()

        task = asyncio.ensure_future(arrive())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        raise Unavailable("time-out; the request is still on its way")


class Operator:
    """One life of the operator process."""

    def __init__(
        self, cluster: MemoryCluster, transition: int, rng: random.Random, error: timedelta, slew: float
    ) -> None:
        self.clock = clock = MachineClock(slew, error)
        log = logging.getLogger(f"operator-{transition}")
        self.coordinator = Coordinator(
            clock=clock,
            authenticate=bearer(TOKEN),
            find_owner=owner_in(cluster),
            master_key=MASTER_KEY,
            transition=transition,
        )
        means = Means(cluster=cluster, agents=self.coordinator, clock=clock, rng=rng, log=log)
        self.reconciler = Reconciler(means, Installation(coordinator_url="http://coordinator"))
        self._task = asyncio.ensure_future(self.reconciler.run())
        self._requests: set[asyncio.Future[Answer]] = set()
        self.alive = True

    async def post(self, body: bytes) -> Answer:
        """A request as an agent makes it; it ends in ConnectionError when the process dies meanwhile."""
        request = asyncio.ensure_future(self.coordinator.serve(TOKEN, body))
        self._requests.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            if self.alive:
                raise  # the agent was killed, not we
            raise ConnectionError("the operator died") from None
        finally:
            self._requests.discard(request)
            request.cancel()

    def kill(self) -> None:
        """SIGKILL: what is under way stops where it stands."""
        self.alive = False
        self._task.cancel()
        for request in self._requests:
            request.cancel()

    def check(self) -> None:
        """Raise what ended the operator, if it ended by itself."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()


class Simulation:
    """Cluster, world, operator, and the checker between them."""

    def __init__(
        self, seed: int = 0, pace: Pace | None = None, cluster_type: type[MemoryCluster] = MemoryCluster
    ) -> None:
        self.rng = random.Random(seed)
        uids = (f"uid-{number}" for number in itertools.count(1))
        self.cluster = cluster_type(VirtualClock(), new_uid=lambda: next(uids))
        self.cluster.faults = self._on_call
        self.world = World(self.cluster, self.post, self.rng, pace)
        self.checker = Checker(self.world)
        self.calls: list[tuple[Call, Moment]] = []
        self.on_call: Callable[[Call, Moment], Awaitable[None]] | None = None
        self.obstacles: dict[str, Callable[[], Exception | None]] = {}
        """By verb (or `*`): what the API server answers for now."""
        self.network_loss = 0.0
        self.network_echo = 0.0
        """How many messages come a second time, later."""
        self.lost = 0
        """Messages that were lost, or came twice."""
        self.operator: Operator | None = None
        self.clock_error = timedelta(0)
        """Of the machine that an operator starts on."""
        self.slew = SLEW
        self._lives = 0

    async def __aenter__(self) -> Simulation:
        self.world.spawn(self.world.run_nodes())
        self.world.spawn(self.checker.run(self.cluster))
        self.start_operator()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill_operator()
        await self.world.stop()

    def start_operator(self) -> None:
        self._lives += 1
        self.operator = Operator(self.cluster, self._lives, self.rng, self.clock_error, self.slew)

    def set_clock(self, error_s: float) -> None:
        """Somebody sets the clock of the machines that operators run on: so many seconds ahead of the API server's."""
        self.clock_error = timedelta(seconds=error_s)
        if self.operator is not None:
            self.operator.clock.error = self.clock_error

    def kill_operator(self) -> None:
        if self.operator is not None:
            operator, self.operator = self.operator, None
            operator.check()
            operator.kill()

    def replace_operator(self) -> Operator | None:
        """A new leader begins; the old one, which nobody hears any more, is handed back still at work."""
        old = self.operator
        self.start_operator()
        return old

    async def post(self, body: bytes) -> Answer:
        """The network between agents and operator."""
        operator = self.operator
        if operator is None or self._is_lost():
            raise ConnectionError("nobody listens")
        await asyncio.sleep(LATENCY_S)
        if self.network_echo and self.rng.random() < self.network_echo:
            self.lost += 1
            self.world.spawn(self._echo(body, self.rng.uniform(0.0, ECHO_S)))
        answer = await operator.post(body)
        if self._is_lost():
            raise ConnectionError("the reply was lost")
        return answer

    async def _echo(self, body: bytes, after_s: float) -> None:
        """The network delivers it again, and nobody waits for the answer."""
        await asyncio.sleep(after_s)
        with contextlib.suppress(ConnectionError):
            if self.operator is not None:
                await self.operator.post(body)

    def _is_lost(self) -> bool:
        lost = self.rng.random() < self.network_loss
        self.lost += lost
        return lost

    async def _on_call(self, call: Call, moment: Moment) -> None:
        self.calls.append((call, moment))
        if call.verb == "create_pod" and moment is Moment.BEFORE:
            self.checker.note_create(call.name)
        if self.on_call is not None:
            await self.on_call(call, moment)
        for verb in (call.verb, "*") if moment is Moment.BEFORE else ():
            error = self.obstacles[verb]() if verb in self.obstacles else None
            if error is not None:
                raise error

    @property
    def writes(self) -> list[Call]:
        """Calls that may have changed something."""
        return [call for call, moment in self.calls if call.writes and moment is Moment.BEFORE]

    # --- What a test asks ---------------------------------------------------------------------------------------------

    def job(self, name: str = "digits") -> TrainJob:
        return TrainJob.model_validate(self.cluster.job(NAMESPACE, name))

    async def until(
        self, condition: Callable[[], bool], what: str, within_s: float = 600.0, every_s: float = 0.1
    ) -> None:
        """Let time pass until the condition holds; looked at every so often."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not condition():
            self.checker.raise_failure()
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(
                    f"not within {within_s:.0f} s: {what}; status: {[job['status'] for job in self.cluster.jobs()]}"
                )
            await asyncio.sleep(every_s)
        self.checker.raise_failure()

    async def until_finished(self, name: str = "digits", within_s: float = 600.0) -> TrainJob:
        await self.until(lambda: self.job(name).status.finished, f"{name} is Complete or Failed", within_s, every_s=1.0)
        return self.job(name)

    async def until_training(self, attempt: int = 1, name: str = "digits", within_s: float = 600.0) -> None:
        """All ranks of that attempt (or a later one) run."""

        def trains() -> bool:
            return any(group.all_running for (_, number), group in self.world.groups.items() if number >= attempt)

        await self.until(trains, f"attempt {attempt} of {name} trains", within_s)

    def agent(self, index: int, name: str = "digits") -> Any:
        """The agent of a member of the newest attempt."""
        groups = [
            group
            for group in self.world.groups.values()
            if group.members.get(0) is not None and group.members[0].job == name
        ]
        return max(groups, key=lambda group: group.attempt).members[index]


class Death:
    """Kills the operator at its n-th question, once; a fresh one starts a moment later. A hook for `on_call`."""

    def __init__(self, sim: Simulation, at: int, moment: Moment | None = None) -> None:
        self._sim, self._at, self._moment = sim, at, moment

    async def __call__(self, call: Call, moment: Moment) -> None:
        if len(self._sim.calls) - 1 == self._at:
            assert self._moment in (None, moment)
            self._sim.kill_operator()
            self._sim.world.spawn(self._start_again())
            await asyncio.Event().wait()  # this very call belongs to the process that dies

    async def _start_again(self) -> None:
        await asyncio.sleep(RESTART_S)
        self._sim.start_operator()


class Checker:
    """Follows every change of every object and holds it against the promises (design, section 2)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, TrainJob] = {}
        self._makes: dict[str, str | None] = {}
        """By pod UID: what it was made of."""
        self._slots: dict[str, int] = {}
        """By pod UID: its slot."""
        self._members: dict[tuple[str, int], tuple[int, ...]] = {}
        """By job UID and attempt, as status named them."""
        self._most: dict[tuple[str, str], float] = {}
        """By job UID and budget: the most that it ever was; what was allowed then may have been counted."""
        self.finished_at: dict[str, float] = {}
        """By job UID: when its end was written, whatever a clock says."""
        self._failure: AssertionError | None = None
        self._listed_at_call: dict[str, set[int]] = {}

    def note_create(self, pod: str) -> None:
        """A create is sent: its slot must be listed by now. Until it takes effect another leader may have written."""
        self._listed_at_call[pod] = {slot for job in self._jobs.values() for slot in parse_slots(job.status.slots)}

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._world.failure is not None:
            raise self._world.failure
        self._check_starts()

    async def run(self, cluster: MemoryCluster) -> None:
        async for change in cluster.watch_objects():
            try:
                self._look(change)
            except AssertionError as error:
                self._failure = self._failure or error

    def _look(self, change: ObjectChange) -> None:
        if change.kind == "TrainJob" and change.type is not ChangeType.DELETED:
            try:
                job = read_job(change.object)
            except UnreadableJob:
                return
            before = self._jobs.get(job.metadata.uid)
            self._jobs[job.metadata.uid] = job
            if before is not None:
                _compare(before, job)
            if job.status.finished:
                self.finished_at.setdefault(job.metadata.uid, asyncio.get_running_loop().time())
            if job.status.attempt is not None:
                members = parse_slots(job.status.attempt.members)
                self._members.setdefault((job.metadata.uid, job.status.attempt.number), members)
            _check_spares(job)
            self._check_budget(job)
        elif change.kind == "Pod" and change.type is ChangeType.ADDED:
            labels = change.object["metadata"].get("labels") or {}
            self._makes[change.object["metadata"]["uid"]] = labels.get("trainjob.dev/make")
            self._slots[change.object["metadata"]["uid"]] = int(labels.get("trainjob.dev/slot", -1))
            self._check_new_pod(change.object)

    def _check_new_pod(self, pod: Manifest) -> None:
        owner = pod["metadata"].get("ownerReferences", [{}])[0].get("uid")
        job = self._jobs.get(owner)
        late: set[str] = getattr(self._world.cluster, "late_pods", set())
        if job is None or pod["metadata"]["name"] in late:
            return  # a create that took effect late: such a pod is deleted again, or was waited for
        slot = int(pod["metadata"]["labels"]["trainjob.dev/slot"])
        listed = self._listed_at_call.get(pod["metadata"]["name"], set())
        assert slot in listed, f"pod {pod['metadata']['name']} was created, its slot was not listed"
        assert slot < job.status.next_slot, f"slot {slot} is used and nextSlot is {job.status.next_slot}"

    def _check_budget(self, job: TrainJob) -> None:
        policy, failures, happened = job.spec.failure_policy, job.status.failures, self._world
        self._within(job, "failures", failures.counted, policy.max_failures, happened.incidents)
        self._within(job, "preemptions", failures.preemptions, policy.max_preemptions, happened.evictions)

    def _within(self, job: TrainJob, what: str, counted: int, budget: int, happened: int) -> None:
        key = job.metadata.uid, what
        most = self._most[key] = max(self._most.get(key, 0.0), float("inf") if budget < 0 else budget)
        assert counted <= most + 1, f"{counted} {what} are counted, the budget was never more than {most}"
        assert counted <= happened, f"{counted} {what} are counted, {happened} happened"

    def _check_starts(self) -> None:
        """Ranks of an attempt and index start once, and never before the attempt is committed."""
        seen: dict[tuple[str, int, int], str] = {}
        makes: dict[tuple[str, int], str | None] = {}
        for job_uid, attempt, index, pod_uid in self._world.starts:
            assert (job_uid, attempt, index) not in seen, (
                f"attempt {attempt} index {index} was started by {seen[(job_uid, attempt, index)]} and {pod_uid}"
            )
            seen[(job_uid, attempt, index)] = pod_uid
            made_of = makes.setdefault((job_uid, attempt), self._makes.get(pod_uid))
            assert made_of == self._makes.get(pod_uid), f"attempt {attempt} has members of two makes"
            job = self._jobs.get(job_uid)
            members = self._members.get((job_uid, attempt), ())
            assert self._slots.get(pod_uid) in members[index : index + 1], (
                f"{pod_uid} trains as index {index} of attempt {attempt}, whose members are {members}"
            )
            if job is not None:
                assert job.status.attempt is not None and attempt <= job.status.attempt.number, (
                    f"attempt {attempt} runs and is not committed"
                )


def _check_spares(job: TrainJob) -> None:
    """A spare is listed, no member of what runs, and there are no more than the spec that was answered wishes."""
    status, spares = job.status, parse_slots(job.status.spares)
    assert set(spares) == set(spare_slots(status)), f"spares {status.spares} of slots {status.slots}: {status.attempt}"
    if status.finished or (job.spec.suspend and status.attempt is not None and status.attempt.state == "Ended"):
        assert not spares or status.observed_generation != job.metadata.generation, "a job at rest has spares"
    elif status.observed_generation == job.metadata.generation:
        wished = job.spec.runtime.spare_workers
        assert len(spares) <= wished, f"{len(spares)} spares, and {wished} are wished"


def _compare(before: TrainJob, after: TrainJob) -> None:
    """Two versions of one object."""
    old, new = before.status, after.status
    assert old.next_slot <= new.next_slot, f"nextSlot went back from {old.next_slot} to {new.next_slot}"
    assert old.failures.counted <= new.failures.counted, "a counted failure was forgotten"
    assert new.failures.counted <= old.failures.counted + 1, "two failures were counted in one write"
    assert old.failures.preemptions <= new.failures.preemptions <= old.failures.preemptions + 1, (
        "preemptions must be counted one by one"
    )
    if old.attempt is not None:
        assert new.attempt is not None and old.attempt.number <= new.attempt.number <= old.attempt.number + 1, (
            "attempts must rise one by one"
        )
        if new.attempt.number != old.attempt.number and after.spec.elastic is not None:
            sizes = defaults.sizes(after.spec)
            assert new.attempt.workers in sizes, f"an attempt begins with {new.attempt.workers} workers, not {sizes}"
        if new.attempt.number == old.attempt.number:
            assert (old.attempt.members, old.attempt.world_size) == (new.attempt.members, new.attempt.world_size), (
                "a committed attempt changed its members"
            )
            assert not (old.attempt.state == "Ended" and new.attempt.state == "Running"), "an ended attempt runs again"
    _compare_books(before, after)
    if old.finished:
        answered = old.model_copy(update={"observed_generation": new.observed_generation})
        assert new == answered, "a finished job's status changed"


def _compare_books(before: TrainJob, after: TrainJob) -> None:
    """Every second since the first turn is in one place: time that passes between two writes is dealt out whole, and
    what was settled never shrinks. A clock that was put back between two leaders costs no second, and makes none.
    """
    old, new = before.status.goodput, after.status.goodput
    if new is None:
        assert old is None, "the books were lost"
        return
    places = new.seconds.model_dump()
    assert all(value >= 0 for value in places.values()), f"a place is negative: {places}"
    if old is None:
        assert sum(places.values()) == 0, f"the first look found time already: {places}"
        return
    passed, dealt = _whole_ms(new.at) - _whole_ms(old.at), _total_ms(new.seconds) - _total_ms(old.seconds)
    assert dealt == passed or passed <= dealt <= 0, f"{passed} ms passed, {dealt} ms were dealt out: {old} {new}"
    for name, value in old.settled.model_dump().items():
        assert getattr(new.settled, name) >= value, f"settled {name} shrank from {value}: {new}"
    if not before.status.finished and after.status.finished:
        assert new.settled == new.seconds and new.settled_at == new.at, "the job ended with open books"


def _whole_ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _total_ms(seconds: Seconds) -> int:
    return sum(round(value * 1000) for value in seconds.model_dump().values())


class RandomFaults:
    """Errors before and after the effect of calls, and latency; from a seeded source, while it is switched on."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self._rate = rate
        self.on = True
        self.raised = 0

    async def __call__(self, call: Call, moment: Moment) -> None:
        # After a read: what was read is old when it arrives.
        if moment is Moment.BEFORE or not call.writes:
            await asyncio.sleep(self._rng.uniform(0.0, 4.0 if self.on and self._rng.random() < 0.02 else 0.05))
        if self.on and self._rng.random() < self._rate:
            self.raised += 1
            raise self._error(call, moment)

    def _error(self, call: Call, moment: Moment) -> ClusterError:
        if moment is Moment.AFTER:
            return Unavailable(f"{call.verb}: the reply was lost")
        kinds: list[ClusterError] = [
            Unavailable(f"{call.verb}: 503"),
            Unavailable(f"{call.verb}: time-out"),
            Unavailable(f"{call.verb}: 429", retry_after_s=self._rng.choice([1.0, 3.0])),
        ]
        if call.verb == "patch_job_status":
            kinds.append(Conflict("somebody wrote first"))
        if call.verb == "create_pod":
            kinds.append(Rejected("exceeded quota: pods"))
        return self._rng.choice(kinds)
