"""Who takes part in the next attempt, and when it may begin.

Called by the rules in `decide.py`. Which pods there may be is settled before, in `slots.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core import make
from trainjob_operator.core.children import holds_resources, made_of
from trainjob_operator.core.ends.silence import lost_to_peers, says_nothing, silent_slots
from trainjob_operator.core.lifecycle import begin_attempt, end_attempt, name_pods, name_workers
from trainjob_operator.core.model import AgentView, PodView
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots, parse_slots
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.least import least
from trainjob_operator.core.size.pauses import is_backing_off
from trainjob_operator.core.size.slots import take_slots
from trainjob_operator.core.turn import Turn

EXIT_WAIT_S = 30.0
"""A removed pod's agent was told `exit`: it may take this long to store what is staged before its pod is deleted."""
DEAD_NODE_WAIT_S = 60.0
"""Plain mode: the next group waits so long for a pod of the last one on a dead node, which must not hold it."""
DOUBTED_LOOK_S = 1.0
"""How often the word of a worker that its peers lost is looked for. (Longer silence is told by `silence.py`.)"""
LOOK_AGAIN_S = 30.0
"""Plain mode: a pod that is not gone when its grace period is over is looked at so often: is its node dead?"""


def scale(turn: Turn) -> None:
    """spec.workers differs from the running attempt: smaller at once, larger as soon as the new workers are up."""
    if turn.running is None or turn.blocked is not None:
        return None
    wished, members = turn.spec.workers, turn.members()
    if wished == len(members):
        return None
    if wished > len(members) and not turn.plain and not make.is_plain(turn.make):
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
    if turn.status.verdict is not None:
        return None  # `ends/verdict.py`: nothing begins before a worker has looked whether the job is complete
    if is_backing_off(turn):
        return turn.say(
            f"the next start waits until {turn.status.timing.retry_at}: {turn.status.failures.early_in_row} early "
            "ends in a row"
        )
    return _begin_plain(turn) if turn.plain else _begin_with_agents(turn)


def _begin_plain(turn: Turn) -> None:
    """The group is new each time: nothing fences a script without an agent but the absence of its predecessor."""
    if gang.is_waiting(turn):
        return _say_waiting(turn)
    if _waits_for_a_group_to_go(turn, of_any_make=True):
        return None
    slots = take_slots(turn, turn.spec.workers)
    turn.change(slots=format_slots(slots))
    return begin_attempt(turn, tuple(slots))


def _waits_for_a_group_to_go(turn: Turn, *, of_any_make: bool) -> bool:
    """Whether what was there before may still write: without an agent, nobody tells it of a new attempt."""
    kids = turn.kids
    # A container that crashes again and again has ended for us, but not for its kubelet, which starts it once more.
    ended = [pod for pod in kids.ended.values() if holds_resources(pod)]
    remains = {pod.uid: pod for pod in (*kids.live.values(), *ended, *kids.leaving.values(), *kids.parting)}.values()
    in_the_way = [pod for pod in remains if of_any_make or make.is_plain(made_of(turn.job.status, pod, turn.make))]
    left = [pod for pod in in_the_way if not _is_given_up(turn, pod)]
    if left:
        turn.say(f"waiting for pods of the group before to be gone: {name_pods([pod.name for pod in left])}")
    return bool(left)


def _is_given_up(turn: Turn, pod: PodView) -> bool:
    """Whether what is left of the last group is no longer waited for: its node is dead, and nobody can tell whether it
    still runs there. On a node that stands well a process may outlive its grace period, and still write."""
    last = turn.status.attempt
    ended_at = last.ended_at if last is not None else None
    if pod.doubt is not None and pod.doubt_since is None:
        until = after(ended_at, DEAD_NODE_WAIT_S) if ended_at is not None else turn.now
        turn.wake(until)
        return turn.now >= until
    turn.wake(max(after(pod.gone_by or turn.now, 1.0), after(turn.now, LOOK_AGAIN_S)))
    return False


def _begin_with_agents(turn: Turn) -> None:
    if _waits_for_a_group_to_go(turn, of_any_make=False):
        return None
    team = _team(turn)
    late = missing(turn, team)
    if late or len(team) < turn.spec.workers:
        smaller = _team_that_suffices(turn, team, late)
        if smaller is None:
            waits = gang.is_waiting(turn)
            text = f"waiting for {len(late)} of {turn.spec.workers} workers: {name_workers(turn, late)}"
            return _say_waiting(turn) if waits else turn.say(text)
        team = smaller
    last = turn.status.attempt
    storing = sum(view.uploads for view in _parting_agents(turn))
    if storing and last is not None and last.ended_at is not None and elapsed(turn.now, last.ended_at) < EXIT_WAIT_S:
        turn.wake(after(last.ended_at, EXIT_WAIT_S))
        return turn.say(f"waiting for {storing} uploads of removed workers")
    return begin_attempt(turn, team)


def _say_waiting(turn: Turn) -> None:
    turn.say(f"waiting until {turn.status.timing.gang_retry_at} for the next try to get nodes for all workers")


def _team_that_suffices(turn: Turn, team: tuple[int, ...], late: list[int]) -> tuple[int, ...] | None:
    """Not all that are wished are there, but as many as trained before: they need not wait for a wish.

    Whoever was a member and lives comes first, and is waited for: nobody else may hold what was trained last.
    """
    need = least(turn)
    stay = [slot for slot in team if slot in turn.former][:need]
    more = [slot for slot in team if slot not in turn.former and slot not in late][: need - len(stay)]
    if len(stay) + len(more) < need or set(stay) & set(late):
        return None
    return tuple(sorted(stay + more))


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
        # Its peers could not reach it: it is asked to speak for itself before anyone waits for it in a join. What it
        # says may be nothing new, so the next word is looked for.
        turn.wake(after(turn.now, DOUBTED_LOOK_S))
        return False
    # In the write that ends an attempt its ranks may still live: agents reap them before they join the next one.
    return view.quiet or (view.attempt == last.number and (turn.just_ended is not None or turn.running is not None))
