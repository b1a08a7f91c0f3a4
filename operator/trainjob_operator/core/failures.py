"""From the ends of ranks and pods to one incident with its first cause.

Called by the rules in `decide.py`. It finds what happened; what that costs is `budget.py`'s. The first cause is the
earliest end by the agents' clocks, corrected by what their syncs showed; ranks that ended or are stopped because of it are
its victims. Silence is no evidence: only ends of ranks and states of pods are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core.incident import Incident, Undecided
from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.core.moments import after, aware, by_agent_clock
from trainjob_operator.core.naming import pod_name
from trainjob_operator.core.phrases import how_pod_ended, how_rank_ended
from trainjob_operator.core.turn import Turn

COMMUNICATION_WAIT_S = 2.0
"""How long an error that speaks of a lost peer waits for the word of the one that was lost."""

INTERRUPTED_WAIT_S = 5.0
"""How long ranks that their own agent stopped wait for a cause from elsewhere."""

KUBELET_WAIT_S = 2.0
"""How long a container that was started again waits for the kubelet's word on how it ended."""

OOM_KILLED = "OOMKilled"
"""The kubelet's word for a container that the kernel's memory limit ended."""

AGENT_EXITS = frozenset({contract.EXIT_JOB_FAILED, contract.EXIT_NO_COORDINATOR, contract.EXIT_REMOVED, contract.EXIT_LAUNCHER_DIED, contract.EXIT_BAD_CONFIG})
"""Exit codes that are the agent's own and say nothing of the user's code."""

_UNCOUNTED = frozenset({contract.REASON_PREEMPTED, contract.REASON_DAMAGED, contract.REASON_INTERRUPTED})
_NO_STRIKE = frozenset({contract.REASON_COMMUNICATION, contract.REASON_RANK_ENDED_EARLY, contract.REASON_STORAGE, contract.REASON_START})


@dataclass(frozen=True, kw_only=True)
class _RankEnd:
    slot: int
    pod: PodView | None
    report: RankReport
    time: datetime

    @property
    def rank(self) -> int:
        return self.report.get("rank", 0)

    @property
    def communication(self) -> bool:
        error = self.report.get("error")
        return bool(error and error.get("communication"))


def find_incident(turn: Turn) -> Incident | Undecided | None:
    """What ended the running attempt, if anything did. Called while an attempt is running."""
    impostor = _impostor(turn)
    if impostor is not None:
        return _of_impostor(turn, impostor)
    ends = sorted(_broken_ranks(turn), key=lambda end: (end.time, end.rank))
    lost = sorted((_lost_at(turn, slot), slot) for slot in turn.members() if _is_lost(turn, slot))
    first = next((end for end in ends if not end.communication), None)
    if lost and (first is None or lost[0][0] < first.time):
        return _of_pod(turn, lost[0][1])
    if first is not None:
        until = after(first.time, KUBELET_WAIT_S)
        if _is_untold(turn, first) and turn.now < until:
            return Undecided(until, f"the container of rank {first.rank} was started again; waiting for the kubelet's word on its end")
        return _of_rank(turn, first)
    if not ends:
        return _interrupted(turn)
    until = after(ends[0].time, COMMUNICATION_WAIT_S)
    if turn.now < until and not _all_have_ended(turn):
        return Undecided(until, f"rank {ends[0].rank} lost a peer; waiting for that peer's own word")
    return _of_rank(turn, ends[0])


def of_pod_before_start(turn: Turn, pod: PodView) -> Incident:
    """A pod that ended by itself while no attempt ran in it."""
    return Incident(
        reason=contract.REASON_PREEMPTED if pod.disrupted else contract.REASON_START_FAILED,
        time=min(aware(pod.finished_at or turn.now), turn.now),
        message=f"{pod.name} {how_pod_ended(pod)} before training began{_disruption(pod)}",
        slot=pod.slot,
        pod=pod.name,
        node=pod.node,
        exit_code=pod.exit_code,
        signal=pod.signal,
        counted=not pod.disrupted and pod.exit_code != contract.EXIT_NO_COORDINATOR,
    )


def _broken_ranks(turn: Turn) -> Iterator[_RankEnd]:
    """Ends of the running attempt's ranks that are neither a success nor the agent's own doing."""
    for slot in turn.members():
        pod = turn.kids.live.get(slot) or turn.kids.ended.get(slot)
        view = turn.word(slot)
        # Ranks of a pod that is being taken away end because of that: the pod is the cause.
        if view is None or pod is None or pod.disrupted:
            continue
        for report in view.ranks:
            if report.get("state") == contract.RANK_ENDED and _kind(report) not in (contract.END_OK, contract.END_STOPPED):
                yield _RankEnd(slot=slot, pod=pod, report=report, time=_ended_at(report, view, turn.now))


def _is_untold(turn: Turn, end: _RankEnd) -> bool:
    """Whether the agent knows of a restart of its container that the kubelet has not told of yet."""
    view = turn.word(end.slot)
    if view is None or end.pod is None or end.pod.restarts is None or _kind(end.report) != contract.END_LOST:
        return False
    return end.pod.restarts < view.boot - 1


def _interrupted(turn: Turn) -> Incident | Undecided | None:
    """Ranks of the running attempt that their agent stopped, though nothing broke: it acted on a word of an older leader.

    An agent starts no attempt twice, so the attempt cannot go on.
    """
    stopped = [
        _RankEnd(slot=slot, pod=turn.kids.live.get(slot), report=report, time=_ended_at(report, view, turn.now))
        for slot in turn.members()
        if (view := turn.word(slot)) is not None and not view.draining  # a draining pod's own end is the cause, and it will come
        for report in view.ranks
        if report.get("state") == contract.RANK_ENDED and _kind(report) == contract.END_STOPPED
    ]
    if not stopped:
        return None
    first = min(stopped, key=lambda end: (end.time, end.rank))
    until = after(first.time, INTERRUPTED_WAIT_S)
    if turn.now < until:
        return Undecided(until, f"rank {first.rank} was stopped by its agent; waiting for a cause")
    return _of_rank(turn, first)


def _kind(report: RankReport) -> str:
    kind = report.get("kind")
    if kind:
        return kind
    return contract.END_OK if report.get("exit_code") == 0 and not report.get("signal") else contract.END_EXIT


def _ended_at(report: RankReport, view: AgentView, now: datetime) -> datetime:
    """On our clock; never later than the word of it, so that no clock can put off a verdict."""
    heard = min(aware(view.heard_at), now)
    ended = by_agent_clock(report.get("ended_at"), view.clock_offset)
    return heard if ended is None else min(ended, heard)


def _succeeded(turn: Turn, *, outside: int | None = None) -> int:
    """Ranks that ended well, those of slot `outside` left out."""
    words = [turn.word(slot) for slot in turn.members() if slot != outside]
    return sum(1 for view in words if view for r in view.ranks if r.get("state") == contract.RANK_ENDED and _kind(r) == contract.END_OK)


def _all_have_ended(turn: Turn) -> bool:
    words = [turn.word(slot) for slot in turn.members()]
    ended = sum(1 for view in words if view for report in view.ranks if report.get("state") == contract.RANK_ENDED)
    return turn.running is not None and ended >= turn.running.world_size


def _impostor(turn: Turn) -> int | None:
    """The slot whose pod is another than the one that became a member: a create that took effect late, after its retry's pod had come and gone."""
    running, members = turn.running, turn.members()
    if running is None or running.members_digest is None or turn.kids.digest(members) in (None, running.members_digest):
        return None
    strangers = [slot for slot in members if turn.word(slot) is None]
    return next(iter(strangers or members), None)


def _of_impostor(turn: Turn, slot: int) -> Incident:
    name = pod_name(turn.job.metadata.name, slot)
    running = turn.running
    return Incident(
        reason=contract.REASON_POD_LOST,
        time=turn.now,
        message=f"{name} is gone; another pod has its name",
        slot=slot,
        pod=name,
        victims=max(0, (running.world_size - running.world_size // running.workers) if running else 0),
        strikes=False,
    )


def _is_lost(turn: Turn, slot: int) -> bool:
    """Whether a member has no working pod any more."""
    if slot in turn.kids.live:
        return False
    if not turn.plain:
        return True
    pod = turn.kids.ended.get(slot)
    if pod is not None:
        return pod.phase is PodPhase.FAILED
    # Plain mode commits the attempt before its pods: until all have been seen, one that is not there is still to be created.
    return not (slot in turn.kids.absent and turn.status.timing.scheduled_at is None)


def _lost_at(turn: Turn, slot: int) -> datetime:
    """When a member's pod was lost; one that is gone, or is being deleted, tells no time."""
    pod = turn.kids.ended.get(slot)
    return min(aware(pod.finished_at), turn.now) if pod and pod.finished_at else turn.now


def _of_rank(turn: Turn, end: _RankEnd) -> Incident:
    report, running = end.report, turn.running
    error = report.get("error") or {}
    reason = _reason_of_rank(turn, end)
    world = running.world_size if running else 1
    place = end.pod.name if end.pod else pod_name(turn.job.metadata.name, end.slot)
    return Incident(
        reason=reason,
        time=end.time,
        message=f"rank {end.rank} on {place} {_how(turn, end, reason)}",
        slot=end.slot,
        rank=end.rank,
        pod=place,
        node=end.pod.node if end.pod else None,
        exit_code=report.get("exit_code"),
        signal=report.get("signal"),
        traceback=error.get("traceback") or None,
        victims=max(0, world - 1 - _succeeded(turn)),
        counted=reason not in _UNCOUNTED,
        strikes=reason not in _NO_STRIKE | _UNCOUNTED,
    )


def _how(turn: Turn, end: _RankEnd, reason: str) -> str:
    if reason == contract.REASON_OOM and _kind(end.report) == contract.END_LOST:
        return "ended with its container, which was killed because its memory limit was reached (OOMKilled) and was started again"
    return how_rank_ended(_kind(end.report), end.report) + (_unreachable(turn) if end.communication else "")


def _reason_of_rank(turn: Turn, end: _RankEnd) -> str:
    kind = _kind(end.report)
    if end.communication:
        return contract.REASON_RANK_ENDED_EARLY if _succeeded(turn) else contract.REASON_COMMUNICATION
    by_kind = {
        contract.END_EXCEPTION: contract.REASON_USER_ERROR,
        contract.END_START: contract.REASON_START,
        contract.END_DAMAGED: contract.REASON_DAMAGED,
        contract.END_STORAGE: contract.REASON_STORAGE,
        contract.END_LOST: contract.REASON_CONTAINER_RESTARTED,
        contract.END_SIGNAL: contract.REASON_SIGNAL,
        contract.END_STOPPED: contract.REASON_INTERRUPTED,
    }
    if kind != contract.END_EXCEPTION and end.pod is not None and end.pod.reason == OOM_KILLED:
        return contract.REASON_OOM
    # Only ranks that went with their container: a later end in the same pod is not what killed the container once.
    if kind == contract.END_LOST and end.pod is not None and end.pod.last_reason == OOM_KILLED:
        return contract.REASON_OOM
    return by_kind.get(kind, contract.REASON_EXIT)


def _unreachable(turn: Turn) -> str:
    members = turn.members()
    lost = {index for slot in members if (view := turn.word(slot)) for index in view.lost_peers if 0 <= index < len(members)}
    names = [pod_name(turn.job.metadata.name, members[index]) for index in sorted(lost)[:8]]
    return f" (not reachable for its peers: {', '.join(names)})" if names else ""


def _of_pod(turn: Turn, slot: int) -> Incident:
    """A member whose pod failed, is being deleted, or is gone."""
    running = turn.running
    world, workers = (running.world_size, running.workers) if running else (1, 1)
    pod = turn.kids.ended.get(slot) or turn.kids.leaving.get(slot)
    name = pod.name if pod else pod_name(turn.job.metadata.name, slot)
    reason = _reason_of_pod(turn, pod)
    how = how_pod_ended(pod) if pod and not pod.deleting else "is being deleted" if pod else "is gone"
    exit_code = pod.exit_code if pod else None
    return Incident(
        reason=reason,
        time=_lost_at(turn, slot),
        message=f"{name} {how}" + (_disruption(pod) if pod else ""),
        slot=slot,
        pod=name,
        node=pod.node if pod else None,
        exit_code=exit_code,
        signal=pod.signal if pod else None,
        victims=max(0, world - max(1, world // workers) - _succeeded(turn, outside=slot)),
        # An agent that ended with 0 found the run complete, or its coordinator for good out of reach (81): a fresh one finds out.
        counted=reason not in _UNCOUNTED and (turn.plain or exit_code not in (contract.EXIT_OK, contract.EXIT_NO_COORDINATOR)),
    )


def _disruption(pod: PodView) -> str:
    if not pod.disrupted:
        return ""
    return f" (disruption: {pod.disruption})" if pod.disruption else " (disruption)"


def _reason_of_pod(turn: Turn, pod: PodView | None) -> str:
    if pod is not None and pod.disrupted:
        return contract.REASON_PREEMPTED
    if pod is None or pod.deleting:
        return contract.REASON_POD_LOST
    if pod.reason == OOM_KILLED or (pod.crashing and pod.last_reason == OOM_KILLED):
        return contract.REASON_OOM
    if not turn.plain:
        return contract.REASON_POD_FAILED
    by_signal = pod.signal is not None or (pod.exit_code is not None and 128 < pod.exit_code < 128 + 65)
    return contract.REASON_SIGNAL if by_signal else contract.REASON_EXIT
