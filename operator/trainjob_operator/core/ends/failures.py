"""From the ends of ranks and pods to one incident with its first cause.

Called by the rules in `decide.py`. It finds what happened; what that costs is `budget.py`'s. The first cause is the
earliest end by the agents' clocks, corrected by what their syncs showed; ranks that ended or are stopped because of it
are its victims. Silence by itself is no evidence: ends of ranks and states of pods are, and silence that a second
witness confirms (`silence.py`).
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core.answers import Hold, Waker
from trainjob_operator.core.ends import drains, stragglers
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.hangs import find_hang, hung_before
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.pod_ends import (
    OOM_KILLED,
    impostor_slot,
    is_lost,
    lost_at,
    of_impostor,
    of_pod,
    of_silent,
)
from trainjob_operator.core.ends.rank_ends import (
    RankEnd,
    all_have_ended,
    broken_ranks,
    ending_ranks,
    first_that_left,
    kind_of,
    raised_the_same,
    stopped_ranks,
    succeeded,
)
from trainjob_operator.core.ends.silence import find_lost, lost_to_peers, waits_for_word_until
from trainjob_operator.core.ends.unreached import UNREACHED_S, find_unreached, of_unreached
from trainjob_operator.core.moments import after
from trainjob_operator.core.phrases import how_rank_ended, shortened
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.core.turn import Turn

COMMUNICATION_WAIT_S = 5.0
"""How long an error that speaks of a lost peer waits for the word of the one that was lost: its connections may close
while its exception is still on its way out of the script (`finally`, `with`).
"""

ENDING_WAIT_S = 15.0
"""How long it waits for the end of a rank that has raised: its agent kills it after ten seconds."""

INTERRUPTED_WAIT_S = 5.0
"""How long ranks that their own agent stopped wait for a cause from elsewhere."""

KUBELET_WAIT_S = 2.0
"""How long a container that was started again waits for the kubelet's word on how it ended."""


def find_incident(turn: Turn) -> Incident | Hold | None:
    """What ended the running attempt of a group with agents, if anything did."""
    impostor = impostor_slot(turn)
    if impostor is not None:
        return of_impostor(turn, impostor)
    ends = sorted(broken_ranks(turn), key=lambda end: (end.time, end.rank))
    lost = sorted((lost_at(turn, slot), slot) for slot in turn.members() if is_lost(turn, slot))
    first = next((end for end in ends if not end.communication), None)
    if lost and (first is None or lost[0][0] < first.time):
        return drains.waits(turn, [slot for _, slot in lost]) or of_pod(turn, lost[0][1])
    waits = _wait_for_the_ending(turn, first or next(iter(ends), None))
    if waits is not None:
        return waits
    if first is not None:
        until = after(first.time, KUBELET_WAIT_S)
        if _is_untold(turn, first) and turn.now < until:
            why = f"the container of rank {first.rank} was started again; waiting for the kubelet's word on its end"
            return Hold(why=why, until=until, event=Waker.POD)
        return _of_rank(turn, first)
    silent = {slot: lost_worker for slot, lost_worker in find_lost(turn).items() if slot in turn.members()}
    if silent:
        return of_silent(turn, silent)
    if not ends:
        unreached = find_unreached(turn, UNREACHED_S)
        if unreached is not None:
            return of_unreached(turn, unreached)
        return find_hang(turn) or _interrupted(turn) or drains.ahead(turn) or stragglers.replaces(turn)
    return _communication_wait(turn, ends[0]) or _of_rank(turn, ends[0])


def _wait_for_the_ending(turn: Turn, end: RankEnd | None) -> Hold | None:
    """An end after the word of a rank that raised waits for the end of that one: it is the cause, however long its
    clean-up takes. What an error of a lost peer is owed to, each of them may be.
    """
    if end is None:
        return None
    raised = min(ending_ranks(turn), key=lambda rank: (rank.time, rank.rank), default=None)
    until = after(end.time, ENDING_WAIT_S)
    if raised is None or turn.now >= until or (raised.time > end.time and not end.communication):
        return None
    why = f"rank {end.rank} has ended; waiting for the end of rank {raised.rank}, which raised"
    return Hold(why=why, until=until, event=Waker.AGENT)


def _communication_wait(turn: Turn, end: RankEnd) -> Hold | None:
    """An error that speaks of a lost peer waits for that peer's word: for a moment, or until its silence tells that
    it is lost itself.
    """
    if all_have_ended(turn):
        return None
    until = after(end.time, COMMUNICATION_WAIT_S)
    if turn.now < until:
        why = f"rank {end.rank} lost a peer; waiting for that peer's own word"
        return Hold(why=why, until=until, event=Waker.AGENT)
    unreachable = lost_to_peers(turn, turn.members())
    word_until = waits_for_word_until(turn, set(unreachable), end.time)
    if word_until is None:
        return None
    names = ", ".join(pod_name(turn.job.metadata.name, slot) for slot in sorted(unreachable)[:8])
    why = f"rank {end.rank} lost a peer; waiting for the word of {names}, which its peers cannot reach"
    return Hold(why=why, until=word_until, event=Waker.AGENT)


def _is_untold(turn: Turn, end: RankEnd) -> bool:
    """Whether the agent knows of a restart of its container that the kubelet has not told of yet."""
    view = turn.word(end.slot)
    if view is None or end.pod is None or end.pod.restarts is None or kind_of(end.report) != contract.END_LOST:
        return False
    return end.pod.restarts < view.boot - 1


def _interrupted(turn: Turn) -> Incident | Hold | None:
    """Ranks of the running attempt that their agent stopped, though nothing broke: it acted on a word of an older
    leader.

    An agent starts no attempt twice, so the attempt cannot go on.
    """
    stopped = list(stopped_ranks(turn))
    if not stopped:
        return None
    first = min(stopped, key=lambda end: (end.time, end.rank))
    until = after(first.time, INTERRUPTED_WAIT_S)
    if turn.now < until:
        why = f"rank {first.rank} was stopped by its agent; waiting for a cause"
        return Hold(why=why, until=until, event=Waker.AGENT)
    return _of_rank(turn, first)


def _of_rank(turn: Turn, end: RankEnd) -> Incident:
    reason = _reason_of_rank(turn, end)
    left = first_that_left(turn) if end.communication and reason == contract.REASON_RANK_ENDED_EARLY else None
    if left is not None:
        lost = how_rank_ended(kind_of(end.report), end.report)
        text = f"{_named(turn, left)} ended with exit code 0 while others needed it: rank {end.rank} {lost}"
        return _incident(turn, left, end, reason, text)
    return _incident(turn, end, end, reason, f"{_named(turn, end)} {_how(turn, end, reason)}")


def _place(turn: Turn, end: RankEnd) -> str:
    return end.pod.name if end.pod else pod_name(turn.job.metadata.name, end.slot)


def _named(turn: Turn, end: RankEnd) -> str:
    return f"rank {end.rank} on {_place(turn, end)}"


def _incident(turn: Turn, end: RankEnd, told: RankEnd, reason: str, message: str) -> Incident:
    """`end` is to blame; `told` is the end that tells of it, mostly the same."""
    report, running = end.report, turn.running
    error = told.report.get("error") or {}
    world = running.world_size if running else 1
    place = _place(turn, end)
    return Incident(
        reason=reason,
        time=told.time,
        message=message,
        slot=end.slot,
        rank=end.rank,
        pod=place,
        node=end.pod.node if end.pod else None,
        exit_code=report.get("exit_code"),
        signal=report.get("signal"),
        traceback=shortened(error.get("traceback") or "") or None,
        victims=max(0, world - 1 - succeeded(turn) - raised_the_same(turn, end)),
        counted=cause_of(reason).counted,
        strikes=cause_of(reason).strikes,
    )


def _how(turn: Turn, end: RankEnd, reason: str) -> str:
    if reason == contract.REASON_OOM and kind_of(end.report) == contract.END_LOST:
        return (
            "ended with its container, which was killed because its memory limit was reached (OOMKilled) and was "
            "started again"
        )
    said = how_rank_ended(kind_of(end.report), end.report)
    return said + (_unreachable(turn) or hung_before(turn)) if end.communication else said


def _reason_of_rank(turn: Turn, end: RankEnd) -> str:
    kind = kind_of(end.report)
    if end.communication:
        return contract.REASON_RANK_ENDED_EARLY if succeeded(turn) else contract.REASON_COMMUNICATION
    by_kind = {
        contract.END_EXCEPTION: contract.REASON_USER_ERROR,
        contract.END_START: contract.REASON_START,
        contract.END_EARLY: contract.REASON_RANK_ENDED_EARLY,
        contract.END_DAMAGED: contract.REASON_DAMAGED,
        contract.END_STORAGE: contract.REASON_STORAGE,
        contract.END_FULL: contract.REASON_STAGING_FULL,
        contract.END_NOT_SHARED: contract.REASON_NOT_SHARED,
        contract.END_INTERNAL: contract.REASON_INTERNAL,
        contract.END_LOST: contract.REASON_CONTAINER_RESTARTED,
        contract.END_SIGNAL: contract.REASON_SIGNAL,
        contract.END_OOM: contract.REASON_OOM,
        contract.END_STOPPED: contract.REASON_INTERRUPTED,
    }
    if kind != contract.END_EXCEPTION and end.pod is not None and end.pod.reason == OOM_KILLED:
        return contract.REASON_OOM
    # Only ranks that went with their container: a later end in the same pod is not what killed the container once.
    if kind == contract.END_LOST and end.pod is not None and end.pod.last_reason == OOM_KILLED:
        return contract.REASON_OOM
    return by_kind.get(kind, contract.REASON_EXIT)


def _unreachable(turn: Turn) -> str:
    names = [pod_name(turn.job.metadata.name, slot) for slot in sorted(lost_to_peers(turn, turn.members()))[:8]]
    return f" (not reachable for its peers: {', '.join(names)})" if names else ""
