"""Workers that speak to the operator and cannot reach each other: a join that would never end.

Asked by `failures.py` (the end) and `conditions.py` (the word before it). In a join members call rank 0's agent, so
theirs is the word that counts; that agent itself also waits for one that merely takes its time. How long it has lasted
is told by the member, whose clock for it never steps. Once the ranks run, links between agents end nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.silence import says_nothing
from trainjob_operator.core.lifecycle import name_workers
from trainjob_operator.core.moments import after
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.turn import Turn

SAID_AFTER_S = 30.0
"""A member that has not reached rank 0's agent for so long is named in a condition."""
UNREACHED_S = 120.0
"""So long it is waited for: a network that takes its time to let a fresh pod in does so within seconds."""


@dataclass(frozen=True)
class Unreached:
    """Members of an attempt that has not begun to run, and that cannot reach rank 0's agent."""

    leader: int
    since: Mapping[int, datetime]
    """By slot: since when."""

    def slots(self) -> list[int]:
        """Who."""
        return sorted(self.since)


def find_unreached(turn: Turn, for_s: float) -> Unreached | None:
    """Who cannot reach it now, once that has been so of one of them for so long; asks for that look."""
    attempt, members = turn.running, turn.members()
    if attempt is None or attempt.running_at is not None or not members:
        return None
    found: dict[int, datetime] = {}
    for slot in members[1:]:
        view, pod = turn.word(slot), turn.kids.live.get(slot)
        if view is None or pod is None or view.joined or 0 not in view.lost_peers or says_nothing(turn, pod):
            continue
        found[slot] = after(view.heard_at, -view.unreached_s)
    if not found:
        return None
    due = after(min(found.values()), for_s)
    turn.wake(due)
    return Unreached(members[0], found) if turn.now >= due else None


def sentence(turn: Turn, found: Unreached) -> str:
    """`digits-1, digits-2 cannot reach the agent of digits-0 at 10.0.0.3:41234: ...`."""
    view = turn.kids.agent(turn.kids.live.get(found.leader))
    at = f" at {view.address}" if view is not None and view.address else ""
    leader = pod_name(turn.job.metadata.name, found.leader)
    return (
        f"{name_workers(turn, found.slots())} cannot reach the agent of {leader}{at}: does a NetworkPolicy, a service "
        "mesh or a firewall keep the job's pods apart? Agents and ranks connect to each other on any port"
    )


def of_unreached(turn: Turn, found: Unreached) -> Incident:
    """The attempt ends for it. One worker that all the trouble is about is suspect, and so is its node."""
    reason, slots = contract.REASON_PEERS_UNREACHABLE, found.slots()
    suspect, is_sure = _suspect(turn, found)
    slot = slots[0] if suspect is None else suspect
    pod, attempt = turn.kids.live.get(slot), turn.running
    nodes = {turn.kids.live[other].node for other in slots}
    return Incident(
        reason=reason,
        time=min(found.since.values()),
        message=sentence(turn, found),
        slot=slot,
        pod=pod_name(turn.job.metadata.name, slot),
        node=pod.node if pod is not None else None,
        victims=attempt.world_size if attempt is not None else 0,
        counted=cause_of(reason).counted,
        strikes=suspect is not None,
        replaces=is_sure,
        avoid_node=_others_reach_it(turn, found) and len(nodes) == 1,
    )


def _suspect(turn: Turn, found: Unreached) -> tuple[int | None, bool]:
    """The one worker that is on one side of every link that is missing, if there is one, and whether it is replaced at
    once; else at the second time.
    """
    slots, members = found.slots(), turn.members()
    if _others_reach_it(turn, found):
        return (slots[0], True) if len(slots) == 1 else (None, False)
    if len(members) == 2:
        return _of_two(turn, found.leader, slots[0])
    # All miss rank 0's agent: that may be its pod, or one policy that keeps all apart.
    return (found.leader, False) if len(slots) == len(members) - 1 else (None, False)


def _of_two(turn: Turn, leader: int, member: int) -> tuple[int, bool]:
    """Either may be the one: first the member is replaced, and if that has not helped the other. What only its pod
    holds is not given up at once.
    """
    before, attempt = turn.failure_before, turn.running
    helped_not = (
        before is not None
        and before.reason == contract.REASON_PEERS_UNREACHABLE
        and before.pod != pod_name(turn.job.metadata.name, member)
    )
    holds_the_only = attempt is not None and not attempt.storage and turn.status.progress.position > 0
    return leader if helped_not else member, not holds_the_only


def _others_reach_it(turn: Turn, found: Unreached) -> bool:
    words = [turn.word(slot) for slot in turn.members()[1:] if slot not in found.since]
    return any(view is not None and 0 not in view.lost_peers for view in words)
