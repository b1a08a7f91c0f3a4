"""Ranks that hang, as agents tell it: noted in status, and an incident where spec.hang.action is Restart.

Called by `decide.py` (note), `conditions.py` (Degraded), `ends/failures.py` (the incident) and `instruct.py` (the
limit). Whether ranks hang is the agents' verdict: rank 0's knows how training moves, each its own ranks' processes.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from trainjob_api import contract
from trainjob_api.contract import HangReport
from trainjob_api.v1alpha1 import Hang, HangView
from trainjob_operator.core.accounting import SAME_S
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import after, by_agent_clock, elapsed
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.rank_places import slot_of
from trainjob_operator.core.turn import Turn


class Hanging(NamedTuple):
    """What is told, and by whom."""

    view: AgentView
    report: HangReport


def hanging(turn: Turn) -> Hanging | None:
    """A stopped rank's own agent knows best; else rank 0's. None: nothing hangs, or nobody wants to hear of it."""
    if turn.running is None or turn.spec.hang.action == contract.HANG_OFF:
        return None
    words = (Hanging(view, view.hang) for view in turn.words() if view.hang is not None)
    told = [each for each in words if not _is_below_the_limit(turn, each)]
    return next((each for each in told if not each.report["stacks"]), told[0] if told else None)


def _is_below_the_limit(turn: Turn, told: Hanging) -> bool:
    """Whether a silence, though a hang by an earlier limit, is none by that of now: its reporter takes it back when it
    hears of that. A stopped process, told without stacks, is one however short.
    """
    limit = turn.spec.hang.after_seconds
    if limit == "auto" or not told.report["stacks"]:
        return False
    until = after(_since(turn, told), float(limit))
    turn.wake(until)
    return turn.now < until


def note(turn: Turn) -> None:
    """The newest verdict stays in status when it is over: for `tj hang`."""
    found, attempt = hanging(turn), turn.running
    if found is None or attempt is None:
        return
    report = found.report
    known = turn.status.hang
    if known is not None and (known.attempt, known.message) == (attempt.number, report["message"]):
        since = _since(turn, found)
        if elapsed(since, known.since) >= SAME_S:  # another one, in the same words
            turn.change(hang=known.model_copy(update={"since": since}))
        return
    said = HangView(
        attempt=attempt.number,
        since=_since(turn, found),
        message=report["message"],
        ranks=report["ranks"],
        stacks=report["stacks"] or None,
    )
    turn.change(hang=said)
    if turn.spec.hang.action != contract.HANG_RESTART or report["early"]:
        turn.tell("Warning", contract.REASON_HANG, said.message)
    turn.say(said.message)


def hung_before(turn: Turn) -> str:
    """What was told of ranks that hung to the last: a collective that ran into its time-out says nothing of where the
    rank stood that did not come. Empty: none was known to hang.
    """
    known, running, told = turn.status.hang, turn.running, turn.status.condition("Degraded")
    if known is None or running is None or known.attempt != running.number:
        return ""
    is_so = hanging(turn) is not None or (told is not None and told.reason == contract.REASON_HANG)
    return f" (before that: {known.message})" if is_so else ""


def find_hang(turn: Turn) -> Incident | None:
    """The attempt is to end for it."""
    found, running = hanging(turn), turn.running
    if found is None or running is None or turn.spec.hang.action != contract.HANG_RESTART:
        return None
    report = found.report
    if report["early"]:
        return None
    rank = report["ranks"][0] if report["ranks"] else None
    found_slot = slot_of(running, rank or 0)
    slot = found_slot if found_slot is not None else turn.members()[0]
    pod = turn.kids.live.get(slot)
    cause = cause_of(contract.REASON_HANG)
    return Incident(
        reason=contract.REASON_HANG,
        time=_since(turn, found),
        message=report["message"],
        slot=slot,
        rank=rank,
        pod=None if rank is None else pod.name if pod is not None else pod_name(turn.job.metadata.name, slot),
        node=pod.node if pod is not None and rank is not None else None,
        victims=max(0, running.world_size - max(1, len(report["ranks"]))),
        counted=cause.counted,
        # One rank alone is suspect: a worker is not replaced for what several do.
        strikes=cause.strikes and len(report["ranks"]) == 1,
    )


def _since(turn: Turn, found: Hanging) -> datetime:
    """On our clock: ranks have been lost for training since then."""
    since = by_agent_clock(found.report["since"], found.view.clock_offset)
    return turn.now if since is None else min(since, turn.now)


def after_s(hang: Hang) -> float | None:
    """As an agent is told it; None: it learns the limit."""
    if hang.action == contract.HANG_OFF:
        return 0.0
    return None if hang.after_seconds == "auto" else float(hang.after_seconds)
