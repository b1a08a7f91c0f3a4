"""Who takes part in the next attempt, and when it may begin.

Called by the rules in `decide.py`. Which pods there may be is settled before, in `slots.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import Attempt, Growth
from trainjob_operator.core import boundaries, make
from trainjob_operator.core.answers import Answer, Hold, Waker
from trainjob_operator.core.children import holds_resources, made_of
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.silence import says_nothing
from trainjob_operator.core.lifecycle import begin_attempt, end_attempt, name_pods, name_workers
from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots, parse_slots
from trainjob_operator.core.size import elastic, gang, spares
from trainjob_operator.core.size.edits import outdated
from trainjob_operator.core.size.least import least, target
from trainjob_operator.core.size.pauses import backs_off_until
from trainjob_operator.core.size.presence import is_warm, missing
from trainjob_operator.core.size.slots import take_slots
from trainjob_operator.core.turn import Turn

EXIT_WAIT_S = 30.0
"""A removed pod's agent was told `exit`: it may take this long to store what is staged before its pod is deleted."""
DEAD_NODE_WAIT_S = 60.0
"""Plain mode: the next group waits so long for a pod of the last one on a dead node, which must not hold it."""
CREATE_LANDS_S = 60.0
"""A create whose answer did not come may take effect so much later: an API server gives up a request after a minute."""
LOOK_AGAIN_S = 30.0
"""Plain mode: a pod that is not gone when its grace period is over is looked at so often: is its node dead?"""


def scale(turn: Turn, *, beside: bool) -> Answer:
    """spec.workers differs from the running attempt: smaller at the next boundary, larger at the next one after the new
    workers are up (of an elastic job some of them), if they come up `beside` those that train.
    """
    if turn.running is None or turn.blocked is not None or turn.held:
        return None  # something broke, and is to be told and counted before anything planned ends the attempt
    members, growth = turn.members(), turn.status.growth
    turn.change(growth=None)  # unless it is found again to be under way
    if target(turn) > len(members) and beside and not make.is_plain(turn.make):
        return _grow(turn, members, growth)
    return None if target(turn) == len(members) else _end_scaled(turn, members)


def _grow(turn: Turn, members: tuple[int, ...], growth: Growth | None) -> Answer:
    """With all that somebody wishes as soon as they are up, and warm: training stands still from the end of the attempt
    until the last rank has begun. An elastic job also with a part of them, or with those that it had to do without,
    once they have been up for a while: since `growth` began.
    """
    most, team, may_change_size = target(turn), spares.team(turn), turn.spec.elastic is not None
    late = missing(turn, team)
    late.slots.extend(slot for slot in team if slot not in (*members, *late.slots) and not is_warm(turn, slot))
    if may_change_size and outdated(turn, members):
        # At another start its members would be replaced, who may alone hold what was saved last: nothing to grow from.
        why = f"the spec was edited: {len(members)} of {most} workers train on, since to grow would replace them"
        return Hold(why=why, event=Waker.EDIT, bars_failure=False)
    if len(team) == most and not late.slots and (elastic.is_raised(turn) or not may_change_size):
        return _end_scaled(turn, members)
    ready = [slot for slot in team if slot not in late.slots]
    at = elastic.grows_at(turn, members, ready, growth)
    if at is None:
        why = f"training continues with {len(members)} of {most} workers while the others are missing"
        return Hold(why=why, until=late.until, event=Waker.AGENT, bars_failure=False)
    if turn.now < at:
        why = f"{len(ready)} of {most} workers are up: training continues with more of them from {at:%H:%M:%S} UTC on"
        return Hold(why=why, until=at, event=Waker.AGENT, bars_failure=False)
    size = defaults.largest_size(turn.spec, len(ready))
    return _end_resized(turn, contract.REASON_RESIZED, f"{size} workers are up, the attempt had {len(members)}")


def _end_scaled(turn: Turn, members: tuple[int, ...]) -> Answer:
    message = f"spec.workers is {turn.spec.workers}, the attempt had {len(members)}"
    return _end_resized(turn, contract.REASON_SCALED, message)


def _end_resized(turn: Turn, cause: str, message: str) -> Answer:
    hold = boundaries.hold(turn, cause)
    if hold is not None:
        return hold
    end_attempt(turn, cause)
    turn.tell("Normal", cause, message)
    turn.say(message)
    return None


def begin(turn: Turn, form: Callable[[Turn], Answer]) -> Answer:
    """Let the group `form` for the next attempt, unless something of the job itself is in the way."""
    if turn.running is not None or turn.is_suspended:
        return None
    if turn.blocked is not None:
        return Hold(why=turn.blocked[1], event=Waker.EDIT)
    if turn.status.verdict is not None:
        return None  # `ends/verdict.py`: nothing begins before a worker has looked whether the job is complete
    until = backs_off_until(turn)
    if until is not None:
        early = turn.status.failures.early_in_row
        return Hold(why=f"the next start waits until {until:%H:%M:%S} UTC: {early} early ends in a row", until=until)
    return form(turn)


def begin_anew(turn: Turn) -> Answer:
    """Without agents the group is new each time: nothing fences a script but the absence of its predecessor."""
    until = gang.waits_until(turn)
    if until is not None:
        return gang.hold(until)
    before = _waits_for_a_group_to_go(turn, of_any_make=True) or _waits_for_late_creates(turn)
    if before is not None:
        return before
    slots = take_slots(turn, turn.spec.workers)
    turn.change(slots=format_slots(slots), spares="")
    begin_attempt(turn, tuple(slots))
    return None


def _waits_for_a_group_to_go(turn: Turn, *, of_any_make: bool) -> Hold | None:
    """What was there before may still write: without an agent, nobody tells it of a new attempt."""
    kids = turn.kids
    listed = (*kids.live.values(), *kids.ended.values(), *kids.leaving.values())
    # A container that crashes again and again has ended for us, but not for its kubelet, which starts it once more.
    remains = [*filter(holds_resources, listed), *kids.parting]
    in_the_way = [pod for pod in remains if of_any_make or make.is_plain(made_of(turn.job.status, pod, turn.make))]
    waits = {pod.name: _waited_for_until(turn, pod) for pod in in_the_way}
    left = {name: until for name, until in waits.items() if turn.now < until}
    if not left:
        return None
    why = f"waiting for pods of the group before to be gone: {name_pods(list(left))}"
    return Hold(why=why, until=min(left.values()), event=Waker.POD)


def _waits_for_late_creates(turn: Turn) -> Hold | None:
    """A pod of the group before may still come: its create was sent, and nobody heard what became of it."""
    last, listening = turn.status.attempt, turn.observed.listening_since
    if last is None or not make.is_plain(last.make):
        return None  # an agent that comes too late is told to end before it starts anything
    lands = [turn.observed.creates_land_until]
    if listening is not None and aware(last.started_at) < aware(listening):
        # The leader before made pods of it, of whose creates this one knows nothing. All were made when all ran.
        made = min(aware(moment) for moment in (listening, last.running_at, last.ended_at) if moment is not None)
        lands.append(after(made, CREATE_LANDS_S))
    until = max((aware(moment) for moment in lands if moment is not None), default=turn.now)
    if until <= turn.now:
        return None
    why = f"a pod of the group before may still come, its create was not answered: waiting until {until:%H:%M:%S} UTC"
    return Hold(why=why, until=until)


def _waited_for_until(turn: Turn, pod: PodView) -> datetime:
    """Until when what is left of the last group is waited for, or looked at again: if its node is dead, nobody can tell
    whether it still runs there. On a node that stands well a process may outlive its grace period, and still write."""
    last = turn.status.attempt
    ended_at = last.ended_at if last is not None else None
    if pod.doubt is not None and pod.doubt_since is None:
        return after(ended_at, DEAD_NODE_WAIT_S) if ended_at is not None else turn.now
    return max(after(pod.gone_by or turn.now, 1.0), after(turn.now, LOOK_AGAIN_S))


def begin_with_agents(turn: Turn) -> Answer:
    """With all that are wished, or those that suffice."""
    before = _waits_for_a_group_to_go(turn, of_any_make=False) or _waits_for_late_creates(turn)
    if before is not None:
        return before
    team = spares.team(turn)
    late = missing(turn, team)
    if late.slots or len(team) < target(turn):
        smaller = _team_of_a_size(turn, team, late.slots)
        if isinstance(smaller, Hold):
            return smaller
        if smaller is None:
            waits = gang.waits_until(turn)
            text = f"waiting for {len(late.slots)} of {turn.spec.workers} workers: {name_workers(turn, late.slots)}"
            return gang.hold(waits) if waits is not None else Hold(why=text, until=late.until, event=Waker.AGENT)
        team = smaller
    storing = _waits_for_stores(turn)
    if storing is not None:
        return storing
    begin_attempt(turn, team)
    spares.rank(turn, team)
    return None


def _team_of_a_size(turn: Turn, team: tuple[int, ...], late: list[int]) -> tuple[int, ...] | Hold | None:
    """Fewer than are wished, and yet enough; or for whom they wait. None: they are too few."""
    if turn.spec.elastic is None:
        return _team_that_suffices(turn, team, late)
    ready = [slot for slot in team if slot not in late]
    size = defaults.largest_size(turn.spec, len(ready))
    if size is None:
        turn.change(growth=None)
        return None
    return elastic.hold(turn, size, late) or elastic.chosen(turn, ready, size)


def _team_that_suffices(turn: Turn, team: tuple[int, ...], late: list[int]) -> tuple[int, ...] | None:
    """Not all that are wished are there, but as many as trained before: they need not wait for a wish.

    Whoever was a member and lives comes first, and is waited for: nobody else may hold what was trained last.
    """
    need, missing = least(turn), set(late)
    stay = [slot for slot in team if slot in turn.former][:need]
    more = [slot for slot in team if slot not in turn.former and slot not in missing][: need - len(stay)]
    if len(stay) + len(more) < need or missing.intersection(stay):
        return None
    return tuple(sorted(stay + more))


def _waits_for_stores(turn: Turn) -> Hold | None:
    """Removed workers may have parts of the newest checkpoint that nobody else has, and were told to store them."""
    last = turn.status.attempt
    if last is None or last.ended_at is None or elapsed(turn.now, last.ended_at) >= EXIT_WAIT_S:
        return None
    parting = _parting(turn)
    storing = sum(view.uploads for _, view in parting if view is not None)
    # What it said before the attempt ended is older than the checkpoint that the attempt waited for.
    unheard = [pod.name for pod, view in parting if _is_asked_what_it_stores(turn, last, pod, view)]
    if not storing and not unheard:
        return None
    what = f"{storing} uploads of removed workers" if storing else f"the last word of {name_pods(unheard)}"
    return Hold(why=f"waiting for {what}", until=after(last.ended_at, EXIT_WAIT_S), event=Waker.AGENT)


def _is_asked_what_it_stores(turn: Turn, last: Attempt, pod: PodView, view: AgentView | None) -> bool:
    """Only after a planned end is there a checkpoint that was waited for."""
    if last.ended_at is None or not last.storage or pod.slot not in turn.former or pod.phase is not PodPhase.RUNNING:
        return False
    if not cause_of(last.end_cause).planned:
        return False
    if view is None:
        return turn.now < turn.listens_until
    return view.attempt == last.number and aware(view.heard_at) <= aware(last.ended_at)


def _parting(turn: Turn) -> list[tuple[PodView, AgentView | None]]:
    """Pods that are not, or no more, of the job's workers, and what their agents say."""
    listed = set(parse_slots(turn.status.slots))
    going = [pod for slot, pod in (*turn.kids.live.items(), *turn.kids.leaving.items()) if slot not in listed]
    return [(pod, turn.kids.agent(pod)) for pod in (*turn.kids.parting, *going) if not says_nothing(turn, pod)]
