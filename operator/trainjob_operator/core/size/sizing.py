"""Which pods may exist, who takes part in the next attempt, and when it may begin.

Called by the rules in `decide.py`. Slots are listed in status before their pods are created and are never used twice.
The creates and deletes of a turn are derived here from the final status, so that none rests on a slot that status
lacks.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.children import holds_resources
from trainjob_operator.core.ends import budget
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.silence import find_lost, lost_to_peers, says_nothing, silent_slots
from trainjob_operator.core.lifecycle import begin_attempt, end_attempt, name_workers
from trainjob_operator.core.model import Action, AgentView, CreatePod, DeletePod, EnsureService, PodPhase, PodView
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots, parse_slots, pod_name
from trainjob_operator.core.size import gang
from trainjob_operator.core.turn import Turn

KEPT_FINISHED = 3
"""Finished pods of earlier slots that are kept for their logs, beside the first cause's and those of the newest
attempt.
"""
EXIT_WAIT_S = 30.0
"""A removed pod's agent was told `exit`: it may take this long to store what is staged before its pod is deleted."""
PLAIN_STOP_WAIT_S = 60.0
"""Plain mode: the next group waits this long for the pods of the last one to be gone; a dead node must not hold it
for ever.
"""
PLAIN_KILL_GRACE_S = 5
"""Plain mode: grace of a group of which one pod failed; its ranks cannot go on."""


# --- Slots ------------------------------------------------------------------------------------------------------------


def replace_spares(turn: Turn) -> None:
    """While an attempt ran, a pod beside it ended (a worker that was to join): replaced with back-off, not counted."""
    if turn.plain or not turn.was_running or not (set(turn.kids.ended) - set(turn.former)) or turn.running is None:
        return
    books = turn.status.failures
    early = books.early_in_row + 1
    retry_in(turn, budget.back_off(early))
    turn.change(failures=books.model_copy(update={"early_in_row": early}))


def replace_lost(turn: Turn) -> None:
    """Workers that nobody hears and that are not there for another witness either: given up, unless a running attempt
    still counts on them.

    What is left of such a pod stays Terminating until its node is back or removed; a new slot does not wait for it, and
    whatever wakes up there is told to leave.
    """
    if turn.plain or turn.spec.suspend or turn.blocked is not None:
        return
    lost_workers = {slot: lost for slot, lost in find_lost(turn).items() if slot not in turn.members()}
    if lost_workers and turn.just_ended is None:
        early = turn.status.failures.early_in_row + 1
        retry_in(turn, budget.back_off(early))
        turn.change(failures=turn.status.failures.model_copy(update={"early_in_row": early}))
    for slot, lost in lost_workers.items():
        turn.change(slots=format_slots(other for other in parse_slots(turn.status.slots) if other != slot))
        if turn.just_ended is None:  # else the incident itself has been told
            turn.tell("Warning", contract.REASON_WORKER_UNREACHABLE, f"{lost.sentence}: its pod is replaced")
        turn.say(f"{lost.sentence}: its pod is replaced")


def replace(turn: Turn, slot: int, node: str | None) -> None:
    """Give up a worker that broke again and again; its successor keeps away from the node."""
    turn.change(slots=format_slots(other for other in parse_slots(turn.status.slots) if other != slot))
    away = f", away from {node}" if node else ""
    message = (
        f"{pod_name(turn.job.metadata.name, slot)} broke {budget.STRIKES} times without progress: its pod is "
        f"replaced{away}"
    )
    turn.tell("Warning", "WorkerReplaced", message)
    turn.say(message)


def settle_slots(turn: Turn) -> None:
    """Drop slots whose pod is gone for good, and take new numbers up to the wished size."""
    if turn.spec.suspend:
        turn.change(slots="")
    elif turn.plain:
        if turn.running is None:
            turn.change(slots="")
    else:
        kept = _kept(turn)
        wanted = turn.spec.workers - len(kept)
        if wanted > 0 and turn.blocked is None and not is_backing_off(turn) and not gang.is_waiting(turn):
            kept += take_slots(turn, wanted)
            turn.change(timing=turn.status.timing.model_copy(update={"gang_retry_at": None}))
        turn.change(slots=format_slots(kept))


def _kept(turn: Turn) -> list[int]:
    """Listed slots that stay. A slot without a pod stays if no attempt ever counted on it; it is created again by
    its name.
    """
    members = set(turn.members())
    listed = parse_slots(turn.status.slots)
    kept = [slot for slot in listed if slot in turn.kids.live or (slot in turn.kids.absent and slot not in turn.former)]
    if turn.blocked is not None:
        return kept
    return sorted(
        sorted(kept, key=lambda slot: (slot not in members, slot not in turn.kids.live, slot))[
            : max(turn.spec.workers, len(members))
        ]
    )


def take_slots(turn: Turn, count: int) -> list[int]:
    """New numbers, above every pod that bears the job's label, whoever made it."""
    first = max(
        turn.status.next_slot,
        turn.kids.highest + 1,
        max(turn.kids.listed, default=-1) + 1,
        max(turn.former, default=-1) + 1,
    )
    turn.change(next_slot=first + count)
    return list(range(first, first + count))


def retry_in(turn: Turn, seconds: float) -> None:
    """The next attempt, and the next new pod, wait this long."""
    retry_at = after(turn.now, seconds) if seconds > 0 else None
    turn.change(timing=turn.status.timing.model_copy(update={"retry_at": retry_at}))


def is_backing_off(turn: Turn) -> bool:
    """Whether the next start still waits after failures."""
    retry_at = turn.status.timing.retry_at
    if retry_at is None or turn.now >= aware(retry_at):
        return False
    turn.wake(retry_at)
    return True


# --- Scaling and beginning --------------------------------------------------------------------------------------------


def scale(turn: Turn) -> None:
    """spec.workers differs from the running attempt: smaller at once, larger as soon as the new workers are up."""
    if turn.running is None or turn.blocked is not None:
        return None
    wished, members = turn.spec.workers, turn.members()
    if wished == len(members):
        return None
    if wished > len(members) and not turn.plain:
        team = _team(turn)
        if len(team) < wished or missing(turn, team):
            return turn.say(f"training goes on with {len(members)} workers while {wished - len(members)} more come up")
    end_attempt(turn, contract.REASON_SCALED)
    message = f"spec.workers is {wished}, the attempt had {len(members)}"
    turn.tell("Normal", contract.REASON_SCALED, message)
    return turn.say(message)


def begin(turn: Turn) -> None:
    """Begin the next attempt once everyone needed is there."""
    if turn.running is not None or turn.spec.suspend:
        return None
    if turn.blocked is not None:
        return turn.say(turn.blocked[1])
    if is_backing_off(turn):
        return turn.say(
            f"the next start waits until {turn.status.timing.retry_at}: {turn.status.failures.early_in_row} early "
            "ends in a row"
        )
    if gang.is_waiting(turn):
        return turn.say(
            f"waiting until {turn.status.timing.gang_retry_at} for the next try to get nodes for all workers"
        )
    return _begin_plain(turn) if turn.plain else _begin_with_agents(turn)


def _begin_plain(turn: Turn) -> None:
    """The group is new each time: nothing fences a script without an agent but the absence of its predecessor."""
    last = turn.status.attempt
    remains = [*turn.kids.live.values(), *turn.kids.leaving.values(), *turn.kids.parting]
    if (
        remains
        and last is not None
        and last.ended_at is not None
        and elapsed(turn.now, last.ended_at) < PLAIN_STOP_WAIT_S
    ):
        turn.wake(after(last.ended_at, PLAIN_STOP_WAIT_S))
        return turn.say(f"waiting for {len(remains)} pods of attempt {last.number} to be gone")
    slots = take_slots(turn, turn.spec.workers)
    turn.change(slots=format_slots(slots))
    return begin_attempt(turn, tuple(slots))


def _begin_with_agents(turn: Turn) -> None:
    team = _team(turn)
    late = missing(turn, team)
    if late or len(team) < turn.spec.workers:
        return turn.say(f"waiting for {len(late)} of {turn.spec.workers} workers: {name_workers(turn, late)}")
    last = turn.status.attempt
    storing = sum(view.uploads for view in _parting_agents(turn))
    if storing and last is not None and last.ended_at is not None and elapsed(turn.now, last.ended_at) < EXIT_WAIT_S:
        turn.wake(after(last.ended_at, EXIT_WAIT_S))
        return turn.say(f"waiting for {storing} uploads of removed workers")
    return begin_attempt(turn, team)


def _team(turn: Turn) -> tuple[int, ...]:
    return parse_slots(turn.status.slots)[: turn.spec.workers]


def _parting_agents(turn: Turn) -> list[AgentView]:
    listed = set(parse_slots(turn.status.slots))
    going = [pod for slot, pod in (*turn.kids.live.items(), *turn.kids.leaving.items()) if slot not in listed]
    parting = [(pod, view) for pod in (*turn.kids.parting, *going) if (view := turn.kids.agent(pod)) is not None]
    return [view for pod, view in parting if not says_nothing(turn, pod)]


def is_synced(turn: Turn, slot: int) -> bool:
    """Whether the agent of the slot's pod has been heard, and the pod is here to stay."""
    view = turn.kids.agent(turn.kids.live.get(slot))
    return view is not None and bool(view.address) and not view.draining


def missing(turn: Turn, team: tuple[int, ...]) -> list[int]:
    """Those of a team that cannot be members of the next attempt yet."""
    former = parse_slots(turn.status.attempt.members) if turn.status.attempt else ()
    doubted, silent = lost_to_peers(turn, former), silent_slots(turn)
    return [slot for slot in team if slot in silent or not _is_there(turn, slot, slot in doubted)]


def _is_there(turn: Turn, slot: int, doubted: bool) -> bool:
    view, last = turn.kids.agent(turn.kids.live.get(slot)), turn.status.attempt
    if view is None or not is_synced(turn, slot):
        return False
    if last is None:
        return view.quiet
    if doubted and (last.ended_at is None or aware(view.heard_at) <= aware(last.ended_at)):
        # Its peers could not reach it: it is asked to speak for itself before anyone waits for it in a join.
        return False
    # In the write that ends an attempt its ranks may still live: agents reap them before they join the next one.
    return view.quiet or (view.attempt == last.number and (turn.just_ended is not None or turn.running is not None))


# --- Actions ----------------------------------------------------------------------------------------------------------


def pod_actions(turn: Turn) -> list[Action]:
    """What makes the pods match the final status."""
    listed = parse_slots(turn.status.slots)
    actions: list[Action] = []
    if turn.blocked is None and not turn.spec.suspend:
        if turn.observed.service is None:
            actions.append(EnsureService())
        avoid = tuple(turn.status.failures.avoid_nodes)
        have = turn.kids.live.keys() | turn.kids.ended.keys() | turn.kids.leaving.keys()
        actions += [CreatePod(slot, avoid) for slot in listed if slot not in have]
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
    removed = [] if turn.plain else [pod for pod in finished if pod.exit_code == contract.EXIT_REMOVED]
    members = parse_slots(attempt.members) if attempt else ()
    old = [pod for pod in finished if pod not in removed and pod.slot not in members]
    own = () if turn.plain else contract.AGENT_EXITS
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
    return DeletePod(pod.name, pod.uid, None if planned or not turn.plain else PLAIN_KILL_GRACE_S)
