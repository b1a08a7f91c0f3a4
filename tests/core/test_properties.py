"""What holds for every observation: random ones for totality, random histories of a small world for the promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.core import T0, World, ended, make_spec, raised
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import (
    Attempt,
    Boundary,
    CheckpointSpec,
    Condition,
    Failures,
    Growth,
    HistoryEntry,
    Metadata,
    Progress,
    Runtime,
    Timing,
    TrainJob,
    TrainJobSpec,
    TrainJobStatus,
    Verdict,
    WorkersStatus,
)
from trainjob_operator.core import boundaries, make
from trainjob_operator.core.decide import decide
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import AgentView, CreatePod, DeletePod, Observed, PodPhase, PodView, ServiceView
from trainjob_operator.core.pods.naming import parse_slots


def built(model: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A model from fields by Python's names (hypothesis would also fill the required ones by their JSON names)."""
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


# --- Random observations ----------------------------------------------------------------------------------------------

moments = st.one_of(
    st.integers(-100, 100).map(lambda s: T0 + timedelta(seconds=s)),
    st.sampled_from([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), T0.replace(tzinfo=None)]),
)
slots = st.integers(0, 5)
slot_texts = st.sampled_from(["", "0", "0-1", "0-2", "1-3", "0,2,4", "5", "x", "0-9999999999", "3-1"])
floats = st.floats(allow_nan=True, allow_infinity=True) | st.just(T0.timestamp())
kinds = st.sampled_from(
    ["ok", "exit", "signal", "exception", "start", "damaged", "stopped", "lost", "storage", "", "new"]
)
numbers = st.integers(-3, 300) | st.none()

errors = st.none() | st.fixed_dictionaries(
    {}, optional={"type": st.text(max_size=3), "message": st.text(max_size=3), "communication": st.booleans()}
)
ranks: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "rank": st.integers(-1, 5),
        "state": st.sampled_from(["starting", "running", "ended", "?"]),
        "kind": kinds,
        "exit_code": numbers,
        "signal": numbers,
        "ended_at": floats | st.none(),
        "error": errors,
    },
)
progress_reports: st.SearchStrategy[Any] = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "position": st.integers(),
        "step": numbers,
        "total_steps": numbers,
        "metrics": st.dictionaries(st.text(max_size=2), floats, max_size=3),
        "time": floats,
    },
)
checkpoint_reports: st.SearchStrategy[Any] = st.none() | st.fixed_dictionaries(
    {}, optional={"id": st.text(max_size=3), "time": floats, "bytes": st.integers()}
)

agent_views = st.builds(
    AgentView,
    slot=slots,
    pod_uid=st.sampled_from(["a", "b", "c", "d", "e"]),
    boot=st.just(1),
    heard_at=moments,
    address=st.sampled_from(["", "host:1"]),
    clock_offset=st.sampled_from([timedelta(0), timedelta.max, timedelta.min, timedelta(seconds=5)]),
    attempt=st.integers(0, 3),
    quiet=st.booleans(),
    joined=st.booleans(),
    ranks=st.lists(ranks, max_size=3).map(tuple),
    lost_peers=st.lists(st.integers(-2, 9), max_size=2).map(tuple),
    draining=st.booleans(),
    warming=st.booleans(),
    uploads=st.integers(0, 2),
    completed=st.booleans(),
    run=st.none() | st.integers(1, 2),
    progress=progress_reports,
    latest=checkpoint_reports,
    best=checkpoint_reports,
    warning=st.none() | st.text(max_size=3),
)
pod_views = st.builds(
    PodView,
    slot=st.integers(-1, 6) | st.just(10**30),
    name=slots.map(lambda n: f"digits-{n}") | st.just("other"),
    uid=st.sampled_from(["a", "b", "c", "d", "e"]),
    phase=st.sampled_from(PodPhase),
    owned=st.booleans(),
    make=st.none() | st.sampled_from(["plain-1-2", "1-2", "?", ""]),
    deleting=st.booleans(),
    scheduled=st.booleans(),
    ready=st.booleans(),
    node=st.none() | st.just("node"),
    exit_code=numbers,
    signal=numbers,
    reason=st.none() | st.sampled_from(["OOMKilled", "Error", "Evicted", "Unschedulable", "ImagePullBackOff"]),
    disrupted=st.booleans(),
    finished_at=st.none() | moments,
    created_at=st.none() | moments,
    scheduled_at=st.none() | moments,
    restarts=st.none() | st.integers(0, 5),
    last_reason=st.none() | st.just("OOMKilled"),
    crashing=st.booleans(),
    failed_init=st.none() | st.just("fetch"),
    doubt=st.none() | st.just("its node node is NotReady"),
    doubt_since=st.none() | moments,
)

any_pods = st.lists(pod_views, max_size=5)


@st.composite
def tidy_pods(draw: st.DrawFn) -> list[PodView]:
    """Pods as a cluster has them: a name once, and it fits the slot."""
    found = []
    for slot, uid in zip(draw(st.lists(slots, unique=True, max_size=5)), "abcde", strict=False):
        pod = draw(pod_views)
        found.append(replace(pod, slot=slot, name=f"digits-{slot}", uid=uid))
    return found


attempts = built(
    Attempt,
    number=st.integers(1, 3),
    state=st.sampled_from(["Running", "Ended"]),
    started_at=moments,
    make=st.none() | st.sampled_from(["plain-1-2", "1-2", "?", ""]),
    running_at=st.none() | moments,
    ended_at=st.none() | moments,
    members=slot_texts,
    workers=st.integers(1, 4),
    wished=st.none() | st.integers(1, 4),
    world_size=st.integers(1, 8),
    cause=st.just("Started"),
    end_cause=st.none()
    | st.sampled_from([contract.REASON_GANG, contract.REASON_SUSPENDED, contract.REASON_SCALED, "x"]),
    run=st.none() | st.integers(1, 2),
)
statuses = built(
    TrainJobStatus,
    slots=slot_texts,
    spares=slot_texts,
    next_slot=st.integers(0, 7),
    attempt=st.none() | attempts,
    conditions=st.lists(
        built(
            Condition,
            type=st.sampled_from(["Complete", "Failed", "Degraded", "Strange"]),
            status=st.sampled_from(["True", "False", "False", "False"]),
            reason=st.just("R"),
            last_transition_time=moments,
        ),
        max_size=2,
    ),
    failures=built(
        Failures,
        counted=st.integers(-1, 4),
        preemptions=st.integers(-1, 4),
        since_progress=st.integers(-1, 4),
        early_in_row=st.integers(-1, 10**6),
        strikes=st.dictionaries(st.sampled_from(["0", "1", "x", "²"]), st.integers(0, 3), max_size=2),
        avoid_nodes=st.lists(st.text(max_size=2), max_size=8),
    ),
    timing=built(
        Timing,
        active_seconds=st.floats(allow_nan=False),  # JSON holds no NaN
        active_since=st.none() | moments,
        scheduled_at=st.none() | moments,
        retry_at=st.none() | moments,
        gang_retry_at=st.none() | moments,
        gang_tries=st.integers(-1, 10**6),
        spare_retry_at=st.none() | moments,
        spare_tries=st.integers(-1, 10**6),
        finished_at=st.none() | moments,
    ),
    progress=built(
        Progress, position=st.integers(0, 5), last_report_time=st.none() | moments, written_at=st.none() | moments
    ),
    workers=built(WorkersStatus, ready=st.integers(0, 4), counted_at=st.none() | moments),
    boundary=st.none() | built(Boundary, cause=st.just(contract.REASON_SCALED), since=moments),
    growth=st.none() | built(Growth, workers=st.integers(1, 4), since=moments),
    verdict=st.none() | built(Verdict, reason=st.just("R"), message=st.just("m")),
    restart=st.none() | st.just("old"),
    history=st.lists(
        built(
            HistoryEntry,
            attempt=st.just(1),
            cause=st.just("c"),
            started_at=moments,
            ended_at=st.none() | moments,
            world_size=st.just(1),
        ),
        max_size=10,
    ),
)
specs = st.builds(
    make_spec,
    workers=st.integers(1, 4),
    elastic=st.none()
    | st.builds(
        dict,
        minWorkers=st.integers(1, 3),
        maxWorkers=st.integers(1, 4),
        allowedSizes=st.sampled_from([[], [1, 3], [9]]),
        shrinkAfterSeconds=st.sampled_from([0, 30, 10**30]),
        growAfterSeconds=st.sampled_from([0, 60, 10**30]),
    ),
    suspend=st.booleans(),
    runtime=st.sampled_from([{}, {"agent": "Disabled"}, {"spareWorkers": 1}, {"spareWorkers": 2}]),
    failure_policy=st.sampled_from(
        [
            {},
            {"maxFailures": 0},
            {"maxPreemptions": 1},
            {"maxFailures": -1, "rules": [{"exitCodes": [1], "action": "Ignore"}]},
        ]
    ),
    active_deadline_seconds=st.none() | st.sampled_from([1, 10**30]),
    boundary_timeout_seconds=st.sampled_from([0, 60, 10**30]),
    startup_deadline_seconds=st.none() | st.sampled_from([1, 10**30]),
    ttl_seconds_after_finished=st.none() | st.sampled_from([0, 10**30]),
    pod_cleanup=st.sampled_from(["Running", "All", "None"]),
    template=st.sampled_from(
        [{"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python", "t.py"]}]}}, {}]
    ),
)


@st.composite
def observations(draw: st.DrawFn, pods: st.SearchStrategy[list[PodView]]) -> Observed:
    annotations = draw(
        st.sampled_from([{}, {}, {contract.ANNOTATION_RESTART: "new"}, {contract.ANNOTATION_RESTART: "x" * 999}])
    )
    metadata = Metadata(
        name="digits",
        namespace="ml",
        uid="job-uid",
        deletion_timestamp=T0 if draw(st.integers(0, 19)) == 0 else None,
        annotations=annotations,
    )
    job = TrainJob(metadata=metadata, spec=draw(specs), status=draw(statuses))
    views = draw(st.lists(agent_views, max_size=5))
    service = draw(
        st.sampled_from([None, ServiceView(name="digits", owned=True), ServiceView(name="digits", owned=False)])
    )
    agents = {view.slot: view for view in views}
    refusals = draw(st.sampled_from([None, (), ("exceeded quota: pods",)]))
    return Observed(
        job=job,
        pods=tuple(draw(pods)),
        service=service,
        agents=agents,
        listening_since=draw(st.none() | moments),
        refusals=refusals,
    )


@settings(max_examples=150)
@given(observations(any_pods), moments)
def test_no_input_makes_it_raise_and_the_same_gives_the_same(observed: Observed, now: datetime) -> None:
    decision = decide(observed, now)
    assert decide(observed, now) == decision
    assert decision.why
    assert decision.requeue_after is None or decision.requeue_after > timedelta(0)
    # What is written must be readable again, and each word for an agent be possible.
    assert TrainJobStatus.model_validate(decision.status.to_json()) is not None
    job = observed.job.model_copy(update={"status": decision.status})
    for slot in range(6):
        assert instruct(job, observed.agents, slot, "a")[0]["do"]


@settings(max_examples=150)
@given(observations(any_pods), moments)
def test_what_no_decision_does(observed: Observed, now: datetime) -> None:
    decision, old = decide(observed, now), observed.job.status
    status, listed = decision.status, parse_slots(decision.status.slots)
    creates = [action.slot for action in decision.actions if isinstance(action, CreatePod)]
    assert set(creates) <= set(listed), "a create rests on a slot that status does not list"
    assert len(creates) == len(set(creates))
    ours = {pod.name for pod in observed.pods if pod.owned and not pod.deleting and pod.slot in parse_slots(old.slots)}
    assert not {f"digits-{slot}" for slot in creates} & ours, "a second pod for a slot"
    fresh = set(listed) - set(parse_slots(old.slots))
    assert all(slot >= old.next_slot for slot in fresh), "a number was used twice"
    assert {a.uid for a in decision.actions if isinstance(a, DeletePod)} <= {
        pod.uid for pod in observed.pods if pod.owned
    }
    if status.attempt is not None and status.attempt != old.attempt and status.attempt.state == "Running":
        members = parse_slots(status.attempt.members)
        assert len(set(members)) == len(members)
        if observed.job.spec.elastic is not None and status.attempt.number != (old.attempt and old.attempt.number):
            assert len(members) in defaults.sizes(observed.job.spec)
        assert not set(members) & set(parse_slots(status.spares)), "a member is a spare"
    if not old.finished and observed.job.metadata.deletion_timestamp is None:
        _check_spares(observed.job.spec, status)
    if old.finished:
        assert status == old
    assert (status.attempt.number if status.attempt else 0) >= (old.attempt.number if old.attempt else 0)
    assert 0 <= status.failures.counted - old.failures.counted <= 1
    assert 0 <= status.failures.preemptions - old.failures.preemptions <= 1
    if status.holds("Failed") and not old.finished:
        assert status.last_failure is not None
    assert len(status.history) <= 10 and len(status.failures.avoid_nodes) <= 8


def _check_spares(spec: TrainJobSpec, status: TrainJobStatus) -> None:
    """They are listed, no more than are wished, and none where nothing runs."""
    spares = parse_slots(status.spares)
    assert set(spares) <= set(parse_slots(status.slots))
    wished = 0 if status.finished else spec.runtime.spare_workers
    attempt = status.attempt
    runs = attempt is not None and attempt.state == "Running"
    blocked = status.reason in (contract.REASON_INVALID_SPEC, contract.REASON_SERVICE_CONFLICT)
    if not blocked and not (runs and make.is_plain(attempt.make if attempt else None)):
        assert len(spares) <= (0 if spec.suspend and not runs else wished)


@settings(max_examples=150)
@given(observations(tidy_pods()), st.integers(-100, 100))
def test_a_second_turn_does_nothing_more(observed: Observed, at: int) -> None:
    now = T0 + timedelta(seconds=at)
    world = World(
        observed.job,
        now,
        {pod.name: pod for pod in observed.pods},
        dict(observed.agents),
        observed.service,
        listening_since=observed.listening_since,
    )
    world.turn()
    first = world.status
    second = world.turn()
    # A job that has finished may be deleted in the turn after that.
    assert second.actions == () or world.deleted
    for part in ("slots", "spares", "next_slot", "attempt", "failures", "history", "last_failure", "progress"):
        if part == "attempt" and first.attempt is not None and second.status.attempt is not None:
            seen = {"running_at", "run", "resumed_from"}
            assert second.status.attempt.model_dump(exclude=seen) == first.attempt.model_dump(exclude=seen)
        elif part != "progress" or first.attempt == observed.job.status.attempt:
            assert getattr(second.status, part) == getattr(first, part), part
    third = world.turn()
    assert third.status == second.status


# --- Random histories -------------------------------------------------------------------------------------------------

FAULTS = ["rank", "comm", "ok", "lose", "fail", "crash", "delete", "disrupt", "forget"]
EVENTS = ["turn", "start", "sync", "report", "save", "reach", "gone", "tick", "wait", *["go on"] * 6, *FAULTS]


def histories(*more: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    """What happens to a world, one thing after another, each with a number to choose by."""
    return st.lists(st.tuples(st.sampled_from([*EVENTS, *more]), st.integers(0, 7)), min_size=25, max_size=50)


def happen(world: World, event: str, n: int) -> int:
    """One thing in the world; returns how many incidents it made."""
    names = sorted(world.pods)
    pod = world.pods[names[n % len(names)]] if names else None
    if event == "turn":
        world.turn()
    elif event == "go on":
        world.sync_all()
        world.turn()
        world.start_pods()
    elif event == "start":
        world.start_pods()
    elif event == "sync":
        world.sync_all()
    elif event == "tick":
        world.tick(n)
    elif event == "wait":
        world.tick(70)
    elif event == "forget":
        world.agents.clear()
    elif event == "gone":
        world.finish_deletions()
    elif event in ("suspend", "resume"):
        world.change_spec(suspend=event == "suspend")
    elif event == "scale":
        elastic = world.job.spec.elastic
        least = elastic.min_workers if elastic is not None else 1
        world.change_spec(workers=least + n % (5 - least))
    elif event == "store":
        world.change_spec(checkpoint=CheckpointSpec(storage=f"/{n % 3}"))
    elif event == "template":
        # Suspended and resumed between two looks: that is how it can be changed.
        container = {"name": "trainer", "image": f"image-{n % 3}", "command": ["python", "t.py"]}
        world.change_spec(template={"spec": {"containers": [container]}})
    elif event == "spares" and world.job.spec.runtime.agent == "auto":
        world.change_spec(runtime=world.job.spec.runtime.model_copy(update={"spare_workers": n % 3}))
    elif event == "mode":
        world.change_spec(runtime=Runtime(agent="Disabled" if n % 2 else "auto"))
    elif event == "restart":
        world.ask_restart(f"token-{n}")
    elif event == "unschedulable":
        world.schedule(n)
    elif pod is not None:
        return _to_pod(world, pod, event, n)
    return 0


def _to_pod(world: World, pod: PodView, event: str, n: int) -> int:
    if event in ("rank", "comm", "ok", "report", "save", "reach"):
        view = world.agents.get(pod.slot)
        if view is None or view.pod_uid != pod.uid or view.attempt == 0:
            return 0
        if event == "report":
            world.sync(pod.slot, progress={"position": n, "step": n})
            return 0
        if event == "save":
            world.sync(pod.slot, latest={"id": str(n), "time": world.now.timestamp(), "bytes": 1})
            return 0
        if event == "reach":
            wish = world.status.boundary
            world.sync(pod.slot, boundary=boundaries.token(wish) if wish is not None else None)
            return 0
        report = {
            "rank": raised(pod.slot, "E", at=world.now),
            "comm": raised(pod.slot, "E", communication=True, at=world.now),
        }
        world.sync(pod.slot, ranks=(report.get(event, ended(pod.slot, "ok", exit_code=0)),))
        return event != "ok"
    if event == "lose":
        world.lose_pod(pod.slot)
    elif event == "fail" and pod.phase is PodPhase.RUNNING:
        world.fail_pod(pod.slot, 1 + n)
    elif event == "crash" and pod.phase is PodPhase.RUNNING:
        world.set_pod(
            pod.slot, phase=PodPhase.PENDING, crashing=True, restarts=3, reason="CrashLoopBackOff", exit_code=127
        )
        world.agents.pop(pod.slot, None)
    elif event in ("delete", "disrupt"):
        world.set_pod(pod.slot, deleting=True, disrupted=event == "disrupt")
    return 1


def check(world: World, before: TrainJobStatus, counted_starts: Counter[str]) -> None:
    status = world.status
    if before.finished:
        assert status == before, "terminal stays terminal"
    attempt, last = status.attempt, before.attempt
    if attempt is not None and (last is None or attempt.number != last.number):
        assert attempt.number == (last.number if last else 0) + 1
        if status.failures.counted > counted_starts["counted"]:
            counted_starts["restarts"] += 1
            counted_starts["counted"] = status.failures.counted
    if attempt is not None and attempt.state == "Running" and not status.finished:
        assert set(parse_slots(attempt.members)) <= set(parse_slots(status.slots))
        if world.job.spec.elastic is not None and (last is None or attempt.number != last.number):
            assert attempt.workers in defaults.sizes(world.job.spec)
        made = {
            world.pods[f"digits-{slot}"].make for slot in parse_slots(attempt.members) if f"digits-{slot}" in world.pods
        }
        assert made <= {attempt.make}, "members of two makes"
        begun = last is None or attempt.number != last.number
        if begun and make.is_plain(attempt.make):
            mine = parse_slots(attempt.members)
            remains = [pod for pod in world.pods.values() if pod.slot not in mine and pod.phase is PodPhase.RUNNING]
            assert not remains, "a group begins beside what is left of the one before"
        if make.is_plain(attempt.make):
            others = [pod for pod in world.pods.values() if pod.slot not in parse_slots(attempt.members)]
            assert not [pod.name for pod in others if not pod.deleting and pod.phase is PodPhase.RUNNING]
    answered = status.observed_generation == world.job.metadata.generation
    if answered and not status.finished and not make.is_plain(attempt.make if attempt is not None else None):
        _check_spares(world.job.spec, status)
        assert not set(parse_slots(status.spares)) & set(
            parse_slots(attempt.members) if attempt is not None and attempt.state == "Running" else ()
        )
    live = Counter(pod.slot for pod in world.pods.values() if not pod.deleting)
    assert all(n == 1 for n in live.values())


@settings(max_examples=150)
@given(
    histories("unschedulable"),
    st.integers(-1, 2),
    st.sampled_from(["agents", "plain", "elastic", "spares"]),
    st.integers(1, 3),
)
def test_random_histories(history: list[tuple[str, int]], limit: int, kind: str, workers: int) -> None:
    world = World.of(
        workers=workers,
        failure_policy={"maxFailures": limit},
        runtime={"plain": {"agent": "Disabled"}, "spares": {"spareWorkers": 1}}.get(kind, {}),
        elastic={"minWorkers": 1, "maxWorkers": 4} if kind == "elastic" else None,
    )
    incidents, books = 0, Counter[str]()
    world.run()
    for event, n in history:
        before = world.status
        incidents += happen(world, event, n)
        check(world, before, books)
    assert world.status.failures.counted <= incidents, "an incident was counted twice"
    if limit >= 0:
        assert books["restarts"] <= limit
        assert world.status.failures.counted <= limit + 1


@settings(max_examples=150)
@given(
    histories("suspend", "resume", "scale", "restart", "unschedulable", "store", "template", "mode", "spares"),
    st.sampled_from(["agents", "plain", "elastic", "spares"]),
)
def test_every_history_can_still_end_well(history: list[tuple[str, int]], kind: str) -> None:
    """Whatever happened before: when the faults stop, the job runs, and with as many workers as it should have."""
    world = World.of(
        workers=2,
        failure_policy={"maxFailures": -1, "noProgressAttempts": 0},
        runtime={"plain": {"agent": "Disabled"}, "spares": {"spareWorkers": 1}}.get(kind, {}),
        elastic={"minWorkers": 2, "maxWorkers": 4} if kind == "elastic" else None,
    )
    if kind == "elastic":
        history = [(event, n) for event, n in history if event != "mode"]
    books = Counter[str]()
    for event, n in history:
        before = world.status
        happen(world, event, n)
        check(world, before, books)
    if world.status.finished:
        return
    world.change_spec(suspend=False)
    for look in range(12):
        if look == 6 and kind == "elastic":
            world.ask_restart("at last")  # an elastic job whose spec was edited grows at no other start
        world.tick(500)
        world.finish_deletions()
        world.sync_all()
        world.turn()
        world.start_pods()
        world.sync_all()
    if not world.status.finished:
        assert world.status.phase == "Running", world.turn().why
        assert world.attempt.workers == world.job.spec.workers
        assert len(parse_slots(world.status.spares)) == world.job.spec.runtime.spare_workers
        world.turn()
        assert decide(world.observe(), world.now).status == world.status
