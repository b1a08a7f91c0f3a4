"""Who takes part in the next attempt, and when it may begin.

Called by the rules in `decide.py`. Which pods there may be is settled before, in `slots.py`.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.ends.silence import lost_to_peers, says_nothing, silent_slots
from trainjob_operator.core.lifecycle import begin_attempt, end_attempt, name_workers
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots, parse_slots
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.pauses import is_backing_off
from trainjob_operator.core.size.slots import take_slots
from trainjob_operator.core.turn import Turn

EXIT_WAIT_S = 30.0
"""A removed pod's agent was told `exit`: it may take this long to store what is staged before its pod is deleted."""
PLAIN_STOP_WAIT_S = 60.0
"""Plain mode: the next group waits this long for the pods of the last one to be gone; a dead node must not hold it
for ever.
"""


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
