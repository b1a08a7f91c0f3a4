"""Workers that are lost without a word: their agent is silent, and a second witness says the same.

Asked by `failures.py` (members of the running attempt), `size/` (workers that are waited for), `observe.py` (whose
node is worth a look) and `roster.py` (when a look is due). Silence alone is no verdict: an agent may be slow, a new
leader may not have been found yet, the way to the coordinator may be broken while training goes on. The second witness
is Kubernetes (the pod or its node is not Ready) or another agent that cannot reach it. Where all are silent and some of
their pods stand well, the cause is the way to us: nobody is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import parse_slots, pod_name
from trainjob_operator.core.turn import Turn

SILENT_S = 30.0
"""An agent polls every 20 s, and gives up a poll that is not answered after 30 s."""
LOOK_EVERY_S = (10.0, 60.0)
"""While one is silent and nothing else is known, its node is looked at again after a third of the silence, between
these bounds.
"""
NAMED_PEERS = 3
AHEAD_S = 10.0
"""What the clocks of two machines may differ by."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A worker about which two witnesses agree."""

    pod: PodView
    sentence: str
    """`the agent of digits-1 has been silent for 31 s, and its node node-1 is NotReady`."""
    believed: bool
    """Kubernetes still takes its node for a good one."""


def heard_last(pod: PodView, view: AgentView | None, listening_since: datetime, now: datetime) -> datetime:
    """From when on silence counts: the agent's last word, or the moment when it could first have spoken to this
    leader.
    """
    if view is not None:
        return max(aware(listening_since), aware(view.heard_at))
    # By the API server's clock. One that is still to come tells of no time: our clocks differ.
    moments = [aware(moment) for moment in (pod.created_at, pod.scheduled_at) if moment is not None]
    return max([aware(listening_since), *(moment for moment in moments if moment <= after(now, AHEAD_S))])


def is_silent(pod: PodView, view: AgentView | None, listening_since: datetime | None, now: datetime) -> bool:
    """Whether the pod has a node, and its agent has not been heard for SILENT_S. Of a pod that is not up yet this is
    no wonder.
    """
    return (
        pod.scheduled
        and listening_since is not None
        and aware(now) >= after(heard_last(pod, view, listening_since, now), SILENT_S)
    )


def silent_slots(turn: Turn) -> dict[int, PodView]:
    """Listed pods that are up and whose agents are silent."""
    return {
        slot: pod for slot, pod in _placed(turn).items() if pod.phase is PodPhase.RUNNING and says_nothing(turn, pod)
    }


def find_lost(turn: Turn) -> dict[int, Lost]:
    """The lost among the listed pods, by slot. Asks for another look while silence may become that."""
    listening = turn.observed.listening_since
    if listening is None:
        return {}
    placed, silent = _placed(turn), silent_slots(turn)
    up = {slot for slot, pod in placed.items() if pod.phase is PodPhase.RUNNING}
    peers = _reported_by_peers(turn, silent)
    found: dict[int, Lost] = {}
    for slot, pod in placed.items():
        doubt = _doubt(turn, pod)
        if not says_nothing(turn, pod):
            if doubt is not None:
                turn.wake(after(heard_last(pod, turn.kids.agent(pod), listening, turn.now), SILENT_S))
            continue
        since = elapsed(turn.now, heard_last(pod, turn.kids.agent(pod), listening, turn.now))
        witness = doubt or peers.get(slot)
        if witness is not None:
            found[slot] = Lost(
                pod=pod,
                sentence=f"the agent of {pod.name} has been silent for {since:.0f} s, and {witness}",
                believed=doubt is None,
            )
        elif slot in silent:
            turn.wake(after(turn.now, min(max(since / 3, LOOK_EVERY_S[0]), LOOK_EVERY_S[1])))
    found |= _beside_the_lost(turn, silent, found)
    if up and up == silent.keys() and not up <= found.keys():
        # All are silent while some pods stand well: it is the way to us that is broken.
        return {slot: lost for slot, lost in found.items() if slot not in up}
    return found


def _beside_the_lost(turn: Turn, silent: dict[int, PodView], found: dict[int, Lost]) -> dict[int, Lost]:
    """Silent workers on the node of a lost one: members miss rank 0's agent alone, and it is its agent that would
    miss the others.
    """
    nodes = {lost.pod.node: lost for lost in reversed(found.values())}
    beside = [
        (slot, pod, nodes[pod.node])
        for slot, pod in silent.items()
        if slot not in found and pod.node is not None and pod.node in nodes
    ]
    said = "the agent of {0} is silent, and it is on the node of {1}, which is lost"
    return {
        slot: Lost(pod=pod, sentence=said.format(pod.name, lost.pod.name), believed=lost.believed)
        for slot, pod, lost in beside
    }


def waits_for_word_until(turn: Turn, slots: set[int], since: datetime) -> datetime | None:
    """Until when members that others cannot reach, and that have not spoken since then, are waited for: longer
    silence is told apart.
    """
    listening = turn.observed.listening_since
    pods = [pod for slot in slots if (pod := turn.kids.live.get(slot)) is not None]
    if listening is None:
        return None
    quiet = [heard for pod in pods if (heard := heard_last(pod, turn.kids.agent(pod), listening, turn.now)) <= since]
    until = max((after(heard, SILENT_S) for heard in quiet), default=turn.now)
    return until if until > turn.now else None


def lost_to_peers(turn: Turn, members: tuple[int, ...], deaf: frozenset[int] = frozenset()) -> dict[int, list[str]]:
    """Members that others cannot reach, with the names of those who say so; words of `deaf` ones do not count."""
    found: dict[int, list[str]] = {}
    for slot in members:
        view = turn.word(slot)
        for index in view.lost_peers if view is not None and slot not in deaf else ():
            if 0 <= index < len(members) and members[index] != slot:
                found.setdefault(members[index], []).append(pod_name(turn.job.metadata.name, slot))
    return found


def _reported_by_peers(turn: Turn, silent: dict[int, PodView]) -> dict[int, str]:
    attempt = turn.status.attempt
    members = parse_slots(attempt.members) if attempt is not None else ()
    reports = lost_to_peers(turn, members, frozenset(silent))
    return {slot: f"{', '.join(names[:NAMED_PEERS])} cannot reach it" for slot, names in reports.items()}


def _placed(turn: Turn) -> dict[int, PodView]:
    return {
        slot: pod
        for slot in parse_slots(turn.status.slots)
        if (pod := turn.kids.live.get(slot)) is not None and pod.scheduled
    }


def says_nothing(turn: Turn, pod: PodView) -> bool:
    """Whether the agent of a pod is silent. Of a group without agents nobody asks."""
    return is_silent(pod, turn.kids.agent(pod), turn.observed.listening_since, turn.now)


def _doubt(turn: Turn, pod: PodView) -> str | None:
    """Kubernetes' word against the pod. A probe that failed while the agent still spoke is no witness of its
    silence.
    """
    if pod.doubt_since is None:
        return pod.doubt
    view = turn.kids.agent(pod)
    return pod.doubt if view is not None and aware(pod.doubt_since) > aware(view.heard_at) else None
