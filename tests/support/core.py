"""Builders for observations, and a small world that carries decisions out: pods come and go, agents speak.

Used by tests/core. Nothing of the rules is repeated here: the world creates and deletes exactly what a decision says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from trainjob_api import contract
from trainjob_api.bad_nodes import Mark
from trainjob_api.contract import ProgressReport, RankReport
from trainjob_api.v1alpha1 import Attempt, Metadata, TrainJob, TrainJobSpec, TrainJobStatus
from trainjob_operator.core import make
from trainjob_operator.core.decide import decide
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import (
    Action,
    AgentView,
    CreatePod,
    Decision,
    DeleteJob,
    DeletePod,
    EnsureService,
    Observed,
    PodPhase,
    PodView,
    ServiceView,
    Standing,
)
from trainjob_operator.core.pods.naming import parse_slots

T0 = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"name": "trainer", "image": "image", "command": ["python", "train.py"]}]}
}


def make_spec(**fields: Any) -> TrainJobSpec:
    """A spec in Python's names, with two workers unless told otherwise."""
    return TrainJobSpec.model_validate({"workers": 2, "template": TEMPLATE, **fields})


def make_job(status: TrainJobStatus | None = None, **fields: Any) -> TrainJob:
    """The job `digits`."""
    return TrainJob(
        metadata=Metadata(name="digits", namespace="ml", uid="job-uid"),
        spec=make_spec(**fields),
        status=status or TrainJobStatus(),
    )


def seconds(n: float) -> timedelta:
    """Shorter than timedelta(seconds=n)."""
    return timedelta(seconds=n)


def ended(rank: int, kind: str, *, at: datetime | None = None, **fields: Any) -> RankReport:
    """A rank that has ended."""
    report: dict[str, Any] = {
        "rank": rank,
        "local_rank": 0,
        "pid": 100 + rank,
        "state": contract.RANK_ENDED,
        "kind": kind,
        **fields,
    }
    if at is not None:
        report["ended_at"] = at.timestamp()
    return cast(RankReport, report)


def raised(
    rank: int, type_: str, message: str = "", *, communication: bool = False, at: datetime | None = None
) -> RankReport:
    """A rank that ended by an exception."""
    traceback = f"Traceback...\n{type_}: {message}"
    error = contract.RankError(type=type_, message=message, traceback=traceback, communication=communication)
    return ended(rank, contract.END_EXCEPTION, at=at, exit_code=1, error=error)


@dataclass
class World:
    """A job, its pods and agents, and a clock; `turn` runs decide once and carries the decision out."""

    job: TrainJob
    now: datetime = T0
    pods: dict[str, PodView] = field(default_factory=dict)
    agents: dict[int, AgentView] = field(default_factory=dict)
    service: ServiceView | None = None
    deleted: bool = False
    made: int = 0
    listening_since: datetime | None = T0 - timedelta(hours=1)
    refusals: tuple[str, ...] | None = ()
    creates_land_until: datetime | None = None
    neighbours: tuple[Standing, ...] = ()
    marks: tuple[Mark, ...] = ()
    mute: set[int] = field(default_factory=set)
    """Slots whose agents are not heard any more."""
    parted: dict[int, AgentView] = field(default_factory=dict)
    """What agents said whose pods are gone."""

    went: dict[int, PodView] = field(default_factory=dict)
    """Pods of members that are gone, as they were last."""

    @classmethod
    def of(cls, **fields: Any) -> World:
        """A world with a new job; `fields` are of the spec."""
        return cls(make_job(**fields))

    # --- The operator ---

    @property
    def status(self) -> TrainJobStatus:
        return self.job.status

    @property
    def attempt(self) -> Attempt:
        assert self.status.attempt is not None
        return self.status.attempt

    def observe(self) -> Observed:
        """What a turn would see now."""
        known = {(pod.slot, pod.uid) for pod in self.pods.values()}
        agents = {slot: view for slot, view in self.agents.items() if (slot, view.pod_uid) in known}
        listening, refusals = self.listening_since, self.refusals
        return Observed(
            job=self.job,
            pods=tuple(self.pods.values()),
            service=self.service,
            agents=agents,
            parted=self._parted(),
            went=self.went,
            listening_since=listening,
            refusals=refusals,
            creates_land_until=self.creates_land_until,
            neighbours=self.neighbours,
            marks=self.marks,
        )

    def _parted(self) -> dict[int, AgentView]:
        """As the loop observes it: of members of the running attempt."""
        attempt, there = self.status.attempt, {pod.slot for pod in self.pods.values()}
        if attempt is None or attempt.state != "Running":
            return {}
        gone = set(parse_slots(attempt.members)) - there
        return {slot: view for slot, view in self.parted.items() if slot in gone and view.attempt == attempt.number}

    def turn(self) -> Decision:
        """One turn of the loop."""
        decision = decide(self.observe(), self.now)
        self.apply(decision)
        return decision

    def settle(self, turns: int = 5) -> Decision:
        """Turns until one does nothing more."""
        for _ in range(turns):
            before = self.status
            decision = self.turn()
            if decision.status == before and not decision.actions:
                return decision
        raise AssertionError(f"no rest after {turns} turns: {decision.why}")

    def apply(self, decision: Decision) -> None:
        """Status first, then the actions."""
        self.job = self.job.model_copy(update={"status": decision.status})
        for action in decision.actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        if isinstance(action, EnsureService):
            self.service = self.service or ServiceView(name="digits", owned=True)
        elif isinstance(action, CreatePod):
            assert action.slot in parse_slots(self.status.slots), "an action rests on a slot that status does not list"
            name = f"digits-{action.slot}"
            assert name not in self.pods, f"{name} exists already"
            self.made += 1
            fresh: dict[str, Any] = {
                "make": make.of_job(self.job),
                "phase": PodPhase.PENDING,
                "scheduled": False,
                "ready": False,
                "created_at": self.now,
            }
            self.pods[name] = PodView(slot=action.slot, name=name, uid=f"uid-{self.made}", **fresh)
        elif isinstance(action, DeletePod):
            if (pod := self.pods.get(action.name)) is not None and pod.uid == action.uid:
                self.pods[action.name] = replace(pod, deleting=True)
        elif isinstance(action, DeleteJob):
            self.deleted = True

    def change_spec(self, **fields: Any) -> None:
        """The user edits the spec."""
        metadata = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
        self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update=fields), "metadata": metadata})

    def tick(self, s: float) -> World:
        """Time passes; agents that are not mute poll once in 20 s."""
        self.now += seconds(s)
        for slot, view in self.agents.items():
            if slot not in self.mute and self.now - view.heard_at > seconds(contract.LONG_POLL_S):
                for_s = view.unreached_s + (self.now - view.heard_at).total_seconds() if view.lost_peers else 0.0
                self.agents[slot] = replace(view, heard_at=self.now, unreached_s=for_s)
        return self

    # --- The cluster ---

    def pod(self, slot: int) -> PodView:
        return self.pods[f"digits-{slot}"]

    def only(self) -> int:
        """The one slot that status lists."""
        (slot,) = parse_slots(self.status.slots)
        return slot

    def set_pod(self, slot: int, **fields: Any) -> None:
        self.pods[f"digits-{slot}"] = replace(self.pod(slot), **fields)

    def schedule(self, *slots: int) -> None:
        """These pods get a node; all others that have none are told that there is none for them."""
        for pod in list(self.pods.values()):
            if pod.slot in slots and not pod.scheduled:
                self.set_pod(
                    pod.slot, scheduled=True, scheduled_at=self.now, node=f"node-{pod.slot}", reason=None, message=None
                )
            elif not pod.scheduled and not pod.deleting:
                self.set_pod(pod.slot, reason="Unschedulable", message="0/3 nodes are available: 3 Insufficient cpu.")

    def annotate(self, annotations: dict[str, str]) -> None:
        """The job has these annotations, and no others."""
        self.job = self.job.model_copy(
            update={"metadata": self.job.metadata.model_copy(update={"annotations": annotations})}
        )

    def ask_restart(self, token: str) -> None:
        """The user sets the annotation."""
        self.annotate({contract.ANNOTATION_RESTART: token})

    def start_pods(self) -> None:
        """Pending pods get a node and run."""
        for pod in list(self.pods.values()):
            if pod.phase is PodPhase.PENDING and not pod.deleting:
                self.set_pod(
                    pod.slot,
                    phase=PodPhase.RUNNING,
                    scheduled=True,
                    scheduled_at=self.now,
                    ready=True,
                    node=f"node-{pod.slot}",
                    reason=None,
                    message=None,
                )

    def fail_pod(self, slot: int, exit_code: int | None = 1, **fields: Any) -> None:
        self.set_pod(slot, phase=PodPhase.FAILED, exit_code=exit_code, finished_at=self.now, **fields)

    def lose_pod(self, slot: int) -> None:
        """Pod and agent are gone without another word."""
        del self.pods[f"digits-{slot}"]
        if slot in self.agents:
            self.parted[slot] = self.agents.pop(slot)

    def finish_deletions(self) -> None:
        """Pods that are being deleted are gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    # --- The agents ---

    def sync(self, slot: int, **fields: Any) -> None:
        """The agent of a running pod speaks."""
        pod = self.pod(slot)
        old = self.agents.get(slot)
        if old is None or old.pod_uid != pod.uid:
            old = AgentView(slot=slot, pod_uid=pod.uid, boot=1, heard_at=self.now, address=f"10.0.0.{slot}:7000")
        self.agents[slot] = replace(old, heard_at=self.now, **fields)

    def sync_all(self) -> None:
        """Every running pod's agent speaks, and follows what the committed job says."""
        for pod in self.pods.values():
            if pod.phase is PodPhase.RUNNING and not pod.deleting and pod.owned and not make.is_plain(pod.make):
                self.sync(pod.slot)
        for slot, view in list(self.agents.items()):
            word, _ = instruct(self.job, self.agents, slot, view.pod_uid)
            if word["do"] == contract.DO_RUN and view.attempt != word["attempt"]:
                self.agents[slot] = replace(
                    view,
                    attempt=word["attempt"],
                    quiet=False,
                    joined=True,
                    ranks=(),
                    run=1,
                    progress=None,
                    lost_peers=(),
                )
            elif word["do"] == contract.DO_CHECK:
                self.agents[slot] = replace(view, quiet=True, checked=word["attempt"], run=1)
            elif word["do"] in (contract.DO_HOLD, contract.DO_EXIT):
                self.agents[slot] = replace(view, quiet=True)

    def break_rank(self, slot: int, *reports: RankReport, unheard: bool = False) -> None:
        """Ranks of a member end. Rank 0's agent is asked to speak then, and does, unless it is to go `unheard`."""
        self.sync(slot, ranks=reports)
        leader = parse_slots(self.attempt.members)[0]
        if leader in self.agents and leader not in self.mute and not unheard:
            self.sync(leader)

    def report(self, position: int, **fields: Any) -> None:
        """Rank 0's agent tells of a report."""
        leader = parse_slots(self.attempt.members)[0]
        self.sync(leader, progress=cast(ProgressReport, {"position": position, "step": position, **fields}))

    # --- The usual ways ---

    def run(self) -> World:
        """Go on until every rank runs."""
        for _ in range(6):
            if self.turn().status.phase == "Running" and self.attempt.workers == self.job.spec.workers:
                break
            self.start_pods()
            self.sync_all()
        assert self.attempt.state == "Running" and self.attempt.running_at is not None, self.turn().why
        return self


def is_steady(world: World) -> bool:
    """Whether a turn would write and do nothing."""
    decision = decide(world.observe(), world.now)
    return decision.status == world.status and not decision.actions
