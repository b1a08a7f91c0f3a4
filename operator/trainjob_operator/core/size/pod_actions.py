"""The creates and deletes of a turn: what makes the pods match the final status.

Called by `decide.py` when the rules are through, so that no create rests on a slot that status lacks.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.children import holds_resources
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.silence import says_nothing
from trainjob_operator.core.model import Action, CreatePod, DeletePod, EnsureService, PodPhase, PodView
from trainjob_operator.core.moments import after
from trainjob_operator.core.pods.naming import parse_slots, spare_slots
from trainjob_operator.core.size.start import EXIT_WAIT_S
from trainjob_operator.core.size.suspected import suspected
from trainjob_operator.core.turn import Turn

KEPT_FINISHED = 3
"""Finished pods of earlier slots that are kept for their logs, beside the first cause's and those of the newest
attempt.
"""


def pod_actions(turn: Turn) -> list[Action]:
    """What makes the pods match the final status."""
    listed = parse_slots(turn.status.slots)
    actions: list[Action] = []
    if turn.blocked is None and not turn.is_suspended:
        if turn.observed.service is None:
            actions.append(EnsureService())
        have = turn.kids.live.keys() | turn.kids.ended.keys() | turn.kids.leaving.keys()
        if turn.is_broken or not turn.kind.begins_before_pods:  # a member's pod comes once
            have |= set(turn.members())
        apart = spare_slots(turn.status)  # workers come first
        lacking = [slot for slot in listed if slot not in have and not turn.has_succeeded(slot)]
        lacking.sort(key=lambda slot: (slot in apart, slot))
        # While they are refused, one finds out whether that has changed: the others follow in the turn after.
        lacking = lacking[:1] if turn.observed.refusals else lacking
        own = turn.status.failures.avoid_nodes
        bad = [node for node in suspected(turn) if node.name not in own] if lacking else []
        actions += [CreatePod(slot, (*own, *(node.name for node in bad))) for slot in lacking]
        if lacking and bad and not turn.observed.refusals:
            what = "; ".join(f"{node.name}, until {node.until:%H:%M} UTC: {node.why}" for node in bad)
            turn.tell("Warning", contract.REASON_BAD_NODE, f"new pods keep away from {what}")
    struck = [
        pod
        for slot, pod in (*turn.kids.live.items(), *turn.kids.ended.items())
        if slot not in listed and holds_resources(pod)
    ]
    actions += [_delete(turn, pod) for pod in (*turn.kids.stale, *struck) if not _may_still_exit(turn, pod)]
    actions += [DeletePod(pod.name, pod.uid) for pod in _outdated(turn, listed)]
    return actions


def _outdated(turn: Turn, listed: tuple[int, ...]) -> list[PodView]:
    """Finished pods of earlier slots whose logs nobody will miss: the first cause's and a few of the newest stay."""
    attempt, failure = turn.status.attempt, turn.status.last_failure
    finished = [
        pod
        for pod in turn.kids.finished
        if not pod.deleting and pod.slot not in listed and (failure is None or pod.name != failure.pod)
    ]
    # Workers that were told to leave (suspended, scaled down) go; had they been slower, they would have been deleted.
    own = turn.kind.agent_exits
    removed = [pod for pod in finished if pod.exit_code == contract.EXIT_REMOVED and pod.exit_code in own]
    members = parse_slots(attempt.members) if attempt else ()
    old = [pod for pod in finished if pod not in removed and pod.slot not in members]
    old.sort(key=lambda pod: (pod.phase is PodPhase.FAILED and pod.exit_code not in own, pod.slot, pod.name))
    return removed + old[: max(0, len(old) - KEPT_FINISHED)]


def _may_still_exit(turn: Turn, pod: PodView) -> bool:
    """Whether the pod's agent is still given time to end by itself."""
    history = turn.status.history
    stopped_at = history[-1].ended_at if history else None
    if (
        turn.kids.agent(pod) is None
        or pod.phase is not PodPhase.RUNNING
        or stopped_at is None
        or says_nothing(turn, pod)
    ):
        return False
    end = after(stopped_at, EXIT_WAIT_S)
    turn.wake(end)
    return turn.now < end


def _delete(turn: Turn, pod: PodView) -> DeletePod:
    last = turn.status.attempt
    planned = last is None or cause_of(last.end_cause).planned
    return DeletePod(pod.name, pod.uid, None if planned else turn.kind.kill_grace_s)
