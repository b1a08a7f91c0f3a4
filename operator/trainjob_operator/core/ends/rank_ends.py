"""How ranks ended, as their agents say it: read, corrected to our clock, put beside their pods.

Called by `failures.py` and `pod_ends.py`. Finds no cause and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core.model import AgentView, PodView
from trainjob_operator.core.moments import aware, by_agent_clock
from trainjob_operator.core.turn import Turn


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """One end, on our clock."""

    slot: int
    pod: PodView | None
    report: RankReport
    time: datetime

    @property
    def rank(self) -> int:
        """Its number in the attempt."""
        return self.report.get("rank", 0)

    @property
    def communication(self) -> bool:
        """It speaks of a lost peer, and is no first cause by itself."""
        error = self.report.get("error")
        return bool(error and error.get("communication"))


def broken_ranks(turn: Turn) -> Iterator[RankEnd]:
    """Ends of the running attempt's ranks that are neither a success nor the agent's own doing."""
    for slot in turn.members():
        pod = turn.kids.live.get(slot) or turn.kids.ended.get(slot) or turn.kids.leaving.get(slot)
        view = turn.word(slot) if pod is not None else turn.observed.parted.get(slot)
        # Ranks of a pod that is being taken away end because of that: the pod is the cause. Only what a rank said of
        # itself before its pod was deleted says more than the deletion.
        taken = pod.disrupted if pod is not None else slot in turn.observed.disruptions
        if view is None or taken:
            continue
        for report in view.ranks:
            if report.get("state") == contract.RANK_ENDED and kind_of(report) not in (
                contract.END_OK,
                contract.END_STOPPED,
            ):
                if (pod is None or slot in turn.kids.leaving) and kind_of(report) != contract.END_EXCEPTION:
                    continue
                yield RankEnd(slot=slot, pod=pod, report=report, time=broke_at(report, view, turn.now))


def stopped_ranks(turn: Turn) -> Iterator[RankEnd]:
    """Ranks that their agent stopped. A draining pod's own end is the cause of theirs, and it will come."""
    for slot in turn.members():
        view = turn.word(slot)
        if view is None or view.draining:
            continue
        for report in view.ranks:
            if report.get("state") == contract.RANK_ENDED and kind_of(report) == contract.END_STOPPED:
                yield RankEnd(
                    slot=slot, pod=turn.kids.live.get(slot), report=report, time=broke_at(report, view, turn.now)
                )


def first_that_left(turn: Turn) -> RankEnd | None:
    """Of the ranks that ended well, the one that did so first; None: there is none."""
    ends = [
        RankEnd(slot=slot, pod=turn.kids.live.get(slot), report=report, time=broke_at(report, view, turn.now))
        for slot in turn.members()
        if (view := turn.word(slot)) is not None
        for report in view.ranks
        if report.get("state") == contract.RANK_ENDED and kind_of(report) == contract.END_OK
    ]
    return min(ends, key=lambda end: (end.time, end.rank), default=None)


def ending_ranks(turn: Turn) -> Iterator[RankEnd]:
    """Ranks that have told what ends them, and whose processes are still there; `time` is that of their word."""
    for slot in turn.members():
        view = turn.word(slot)
        for report in view.ranks if view is not None else ():
            error = report.get("error")
            if view is not None and report.get("state") != contract.RANK_ENDED and error:
                pod = turn.kids.live.get(slot)
                end = RankEnd(slot=slot, pod=pod, report=report, time=broke_at(report, view, turn.now))
                if not end.communication:
                    yield end


def raised_the_same(turn: Turn, cause: RankEnd) -> int:
    """How many other ranks raised an exception of this type, or left with this exit code, by themselves: they did not
    end because of this one.
    """
    if kind_of(cause.report) == contract.END_EXIT and not cause.communication:
        code = cause.report.get("exit_code")
        others = [end for end in broken_ranks(turn) if end.rank != cause.rank and not end.communication]
        return sum(kind_of(end.report) == contract.END_EXIT and end.report.get("exit_code") == code for end in others)
    named = (cause.report.get("error") or {}).get("type")
    if named is None or cause.communication or kind_of(cause.report) != contract.END_EXCEPTION:
        return 0
    own = [end for end in broken_ranks(turn) if kind_of(end.report) == contract.END_EXCEPTION]
    told = {end.rank: end for end in (*own, *ending_ranks(turn)) if end.rank != cause.rank and not end.communication}
    return sum((end.report.get("error") or {}).get("type") == named for end in told.values())


def kind_of(report: RankReport) -> str:
    """contract.END_*; told from the exit code where the agent says none."""
    kind = report.get("kind")
    if kind:
        return kind
    return contract.END_OK if report.get("exit_code") == 0 and not report.get("signal") else contract.END_EXIT


def broke_at(report: RankReport, view: AgentView, now: datetime) -> datetime:
    """When it told what ends it, or else ended: clean-up may keep its process longer than its victims' theirs. On our
    clock; never later than the word of it, so that no clock can put off a verdict.
    """
    heard = min(aware(view.heard_at), now)
    told = report.get("raised_at")
    broke = by_agent_clock(report.get("ended_at") if told is None else told, view.clock_offset)
    return heard if broke is None else min(broke, heard)


def succeeded(turn: Turn, *, outside: int | None = None) -> int:
    """Ranks that ended well, those of slot `outside` left out."""
    words = [turn.word(slot) for slot in turn.members() if slot != outside]
    return sum(
        1
        for view in words
        if view
        for r in view.ranks
        if r.get("state") == contract.RANK_ENDED and kind_of(r) == contract.END_OK
    )


def all_have_ended(turn: Turn) -> bool:
    """Whether nobody's word is still to come."""
    words = [turn.word(slot) for slot in turn.members()]
    ended = sum(1 for view in words if view for report in view.ranks if report.get("state") == contract.RANK_ENDED)
    return turn.running is not None and ended >= turn.running.world_size
