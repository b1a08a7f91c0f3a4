"""Ranks that keep the others waiting, as rank 0's agent tells it: noted in status, and a reason to replace their worker
where spec.hang.replaceStragglers says so.

Called by `decide.py` (note), `conditions.py` (Degraded) and `ends/failures.py` (the replacement). Who is slow is the
agents' verdict (`agent/pace/straggling.py`, docs/stragglers.md).
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.bad_nodes import with_suspects
from trainjob_api.contract import StragglerReport, StragglersReport
from trainjob_api.v1alpha1 import Attempt, StragglersView, StragglerView
from trainjob_operator.core import boundaries
from trainjob_operator.core.answers import Hold
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.lifecycle import is_asked_to_restart, is_cancelled
from trainjob_operator.core.moments import by_agent_clock
from trainjob_operator.core.rank_places import slot_of
from trainjob_operator.core.turn import Turn


def straggling(turn: Turn) -> StragglersReport | None:
    """What rank 0's agent says now; None: nobody is slow, or nobody wants to hear of it."""
    word = turn.leader_word()
    if turn.running is None or word is None or turn.spec.hang.action == contract.HANG_OFF:
        return None
    return word.stragglers if word.stragglers is not None and word.stragglers["ranks"] else None


def note(turn: Turn) -> None:
    """The newest verdict stays in status when it is over: for `tj hang`, and for the memory of bad nodes."""
    said, running, word = straggling(turn), turn.running, turn.leader_word()
    if said is None or running is None or word is None:
        return
    known = turn.status.stragglers
    if known is not None and (known.attempt, known.message) == (running.number, said["message"]):
        return
    since = by_agent_clock(said["since"], word.clock_offset)
    view = StragglersView(
        attempt=running.number,
        since=turn.now if since is None else min(since, turn.now),
        message=said["message"],
        ranks=[_view(turn, running, each) for each in said["ranks"]],
    )
    suspects = with_suspects(
        turn.status.suspects, [each.node for each in view.ranks if each.node], turn.now, contract.REASON_STRAGGLER
    )
    turn.change(stragglers=view, suspects=suspects)
    turn.tell("Warning", contract.REASON_STRAGGLER, view.message)
    turn.say(view.message)


def _view(turn: Turn, running: Attempt, told: StragglerReport) -> StragglerView:
    slot = slot_of(running, told["rank"])
    pod = None if slot is None else turn.kids.live.get(slot)
    return StragglerView(pod=pod.name if pod is not None else None, node=pod.node if pod is not None else None, **told)


def replaces(turn: Turn) -> Incident | Hold | None:
    """The worker of the slowest rank is to be another one, from the next checkpoint on; None: nobody asked for that,
    or it was done for all of these. A rank that is as slow on another node is so by what it does.
    """
    said, running = straggling(turn), turn.running
    if said is None or running is None or not turn.spec.hang.replace_stragglers:
        return None
    # Whoever wishes an end has the ranks start again anyway.
    if turn.spec.suspend or is_asked_to_restart(turn) or is_cancelled(turn):
        return None
    replaced = turn.status.replaced_ranks
    if len(replaced) >= contract.STRAGGLERS_REPLACED_LIMIT:
        return None
    new = [each for each in said["ranks"] if each["rank"] not in replaced]
    slowest = max(new, key=lambda each: each["behind"], default=None)
    slot = None if slowest is None else slot_of(running, slowest["rank"])
    pod = None if slot is None else turn.kids.live.get(slot)
    if slowest is None or slot is None or pod is None:
        return None
    found = boundaries.wait(turn, contract.REASON_STRAGGLER)
    if isinstance(found, Hold):
        return found
    if found is boundaries.NOTHING_SAVED:
        return None
    turn.change(replaced_ranks=[*replaced, slowest["rank"]])
    return Incident(
        reason=contract.REASON_STRAGGLER,
        time=turn.now,
        message=f"{pod.name} is replaced, as hang.replaceStragglers says: {said['message']}",
        slot=slot,
        rank=slowest["rank"],
        pod=pod.name,
        node=pod.node,
        counted=cause_of(contract.REASON_STRAGGLER).counted,
        replaces=True,
    )
