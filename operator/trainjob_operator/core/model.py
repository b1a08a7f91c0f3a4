"""What the rules read and what they answer with: observations, actions, the decision.

`observe.py` and `coordinator.py` build the observations, `decide.py` reads them, `apply.py` carries the decision out.
Everything is frozen; a decision is a value that can be compared and printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum

from trainjob_api.bad_nodes import Mark
from trainjob_api.contract import (
    BeginReport,
    CheckpointReport,
    EffortReport,
    ForksReport,
    HangReport,
    Instruction,
    ProgressReport,
    RankReport,
    StacksReport,
    StragglersReport,
)
from trainjob_api.last_word import LastWord
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus


class PodPhase(Enum):
    """Where the trainer container stands; sidecars and the pod's own phase do not count."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PodView:
    """One pod that carries the job's label and our owner reference."""

    slot: int
    name: str
    uid: str
    phase: PodPhase
    owned: bool = True
    """Its controlling owner reference names this very object (UID)."""
    make: str | None = None
    """What it was made of; None: by a version of the operator that did not say."""
    authority: str | None = None
    """Digest of the CA that its agent trusts; None: it was given none."""
    authority_follows: bool = False
    """Its agent takes another one from the pod's annotation while it runs."""
    deleting: bool = False
    gone_by: datetime | None = None
    """Of one that is being deleted: when its grace period is over, by the API server's clock."""
    grace_s: float | None = None
    """How long it has from SIGTERM on: the pod's own grace period, of one that is being deleted that of its deletion.
    """
    priority: int | None = None
    """That of its priority class; None: none was given."""
    scheduled: bool = True
    ready: bool = True
    node: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    """The kubelet's or scheduler's word: OOMKilled, ImagePullBackOff, Unschedulable, ..."""
    message: str | None = None
    failed_init: str | None = None
    """The init container that failed, for good or so far; reason and message are about it."""
    from_event: bool = False
    """Reason and message are those of a Warning event about it."""
    disrupted: bool = False
    """A DisruptionTarget condition stands on it, or its node is being taken away."""
    disruption: str | None = None
    """Who says so, in what words."""
    notice: str | None = None
    """It stands, and its node is about to be taken away: who says so."""
    finished_at: datetime | None = None
    created_at: datetime | None = None
    scheduled_at: datetime | None = None
    """When it got its node."""
    restarts: int | None = None
    """How often its trainer container was started again; None: the kubelet does not say."""
    last_reason: str | None = None
    """The kubelet's word for the trainer container's end before the one that is there now."""
    last_word: LastWord | None = None
    """What its agent left behind as it ended."""
    crashing: bool = False
    """Its trainer container ended again and again, and the kubelet waits ever longer before it starts it once more."""
    doubt: str | None = None
    """Kubernetes' word that its containers may not run any more: `its node node-1 is NotReady`; None: it has none."""
    doubt_since: datetime | None = None
    """Set where the doubt is a failing readiness probe: from when on."""
    lingers: bool = False
    """Its trainer container has ended for good, and containers beside it still run: it holds what it was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentView:
    """What the agent of one pod last said, checked and bounded by the coordinator."""

    slot: int
    pod_uid: str
    boot: int
    heard_at: datetime
    address: str
    clock_offset: timedelta = timedelta(0)
    """Our clock minus the agent's, as seen in the sync; added to its `ended_at`s."""
    attempt: int = 0
    quiet: bool = True
    joined: bool = False
    ranks: tuple[RankReport, ...] = ()
    begin: BeginReport | None = None
    """How the attempt began there."""
    forks: ForksReport | None = None
    """How its ranks were started there."""
    hang: HangReport | None = None
    stragglers: StragglersReport | None = None
    stacks: StacksReport | None = None
    """Where the ranks are, as somebody asked."""
    lost_peers: tuple[int, ...] = ()
    unreached_s: float = 0.0
    """When it said that: for how long the longest of them had not been reached."""
    boundary: str | None = None
    """The wish for a boundary that its ranks have reached, and wait at."""
    draining: bool = False
    warming: bool = False
    """What its ranks are to be forks of is still being made."""
    uploads: int = 0
    completed: bool = False
    checked: int | None = None
    """The attempt after whose end it has looked for the end record, and found it (`completed`) or not."""
    run: int | None = None
    resumed_from: str | None = None
    progress: ProgressReport | None = None
    effort: EffortReport | None = None
    latest: CheckpointReport | None = None
    best: CheckpointReport | None = None
    checkpoint_count: int = 0
    warning: str | None = None
    checkpoint_trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceView:
    """The headless Service of the job's name."""

    name: str
    owned: bool


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a job stands among those of its namespace, as far as the room is concerned that they share."""

    name: str
    uid: str
    created_at: datetime | None = None
    priority: int | None = None
    """Of its pods; None: it has none that tell."""
    requests: tuple[tuple[str, Decimal], ...] = ()
    """What one of its pods requests, by resource."""
    lacks: int = 0
    """Workers without which it cannot begin, and for which there has been no room for a while."""
    has: int = 0
    """Workers that have room, while it lacks others."""
    content: bool = True
    """It trains, or wants no room: suspended, finished."""
    above: int = 0
    """Workers that train and that it could do without: it would still have an allowed size."""
    wants: bool = False
    """It trains, and further workers of it wait for room."""
    gave_to: str | None = None
    """UID of the job that it makes room for."""
    gave: int = 0
    """So many workers."""
    gave_beside: int = 0
    """Workers of that job that had room before."""
    in_vain: frozenset[str] = frozenset()
    """UIDs of jobs that it makes no room for, since that has not helped them."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One consistent look at a job: the object, its children, and what its agents last said.

    `pods` are all pods that carry the job's name label, foreign ones included (`owned` False); `agents` has an entry
    only for a pod that is listed, by slot, and whose UID matches. `listening_since` is when this process began to
    listen to agents: silence before it means nothing.
    """

    job: TrainJob
    pods: tuple[PodView, ...] = ()
    service: ServiceView | None = None
    agents: Mapping[int, AgentView] = field(default_factory=dict)
    parted: Mapping[int, AgentView] = field(default_factory=dict)
    """By slot: what agents of members said in the running attempt whose pods are gone since."""
    went: Mapping[int, PodView] = field(default_factory=dict)
    """By slot: pods of members that are gone since, as they were last; only those that this process was told of."""
    disruptions: Mapping[int, str] = field(default_factory=dict)
    """By slot: why pods of members that are gone were taken away, as their last state or events tell."""
    listening_since: datetime | None = None
    refusals: tuple[str, ...] | None = None
    """What the API server said when it refused the creates of the turn before; None: this process has not tried yet."""
    marks: tuple[Mark, ...] = ()
    """What the jobs of the namespace say of nodes on which they suffered lately."""
    unanswered: str | None = None
    """What came instead of an answer to the creates, again and again: 5xx, 429, a time-out."""
    creates_land_until: datetime | None = None
    """Until when a create of this process whose answer did not come may still take effect; None: there is none."""
    neighbours: tuple[Standing, ...] = ()
    """The other jobs of the namespace that have had a turn of this leader's."""


# --- Actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnsureService:
    """Create the headless Service unless it is there."""


@dataclass(frozen=True)
class CreatePod:
    """Create the pod of a slot that status already lists; a 409 counts as success only if the owner's UID is ours."""

    slot: int
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod (UID precondition)."""

    name: str
    uid: str
    grace_s: int | None = None
    """None: the pod's own grace period."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete the TrainJob itself: its TTL is over."""

    uid: str


Action = EnsureService | CreatePod | DeletePod | DeleteJob


@dataclass(frozen=True)
class Event:
    """A Kubernetes event to emit once the status write succeeded."""

    type: str
    """Normal | Warning"""
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one turn does: status is written first (if it differs), then the actions, then the events.

    Actions rest on the new status: a slot is listed before its pod is created, an attempt is committed before an agent
    hears of it.
    """

    status: TrainJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None
    """Look again after this, even if nothing happens; None: only an event can change the answer."""
    progress_after: timedelta | None = None
    """Progress that is known and not written yet is due then; for that alone nothing of the cluster is read."""
    why: str = ""
    """One sentence; the shell logs it when it changes."""
    standing: Standing | None = None
    """What the other jobs of the namespace are to know of it; None: nothing, it is being deleted or is not ours."""


# --- Words for agents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What the installation, not the job, contributes to pods."""

    coordinator_url: str
    agent_command: tuple[str, ...] = ("python3", "-m", "trainjob.agent")
    """What is put before the trainer's own command, followed by `--`."""
    any_master_port: bool = False
    """Ranks of all pods share one network namespace, so the master port is picked, not computed (local backend)."""
    runtime_image: str | None = None
    """The init container's image, which brings agent and library; None: the machine has them (local backend)."""
    runtime_pull_policy: str = "IfNotPresent"
    coordinator_ca: str | None = None
    """PEM text, handed to agents; None: the system's authorities."""
    token_audience: str | None = None
    """Audience of the projected service-account token; None: no token volume."""
    restart_rules: bool = False
    """The cluster knows container restart rules (1.35 and later): a container that died is started again in its pod."""

    @property
    def authority_follows(self) -> bool:
        """Whether agents can be told of another CA while they run."""
        return self.coordinator_ca is not None and self.token_audience is not None


InstructionFor = tuple[Instruction, str]
"""An instruction and the sentence why."""
