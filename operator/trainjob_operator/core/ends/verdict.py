"""The end of a job whose workers all vanished: Failed waits until a fresh worker found that training had not completed.

Called by `decide.py`. The last rank may have ended well, and the end record be written, while the word of it was lost
with the pods. The next attempt's join reads the record; only if there is none the verdict stands.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.v1alpha1 import Verdict
from trainjob_operator.core.answers import Answer, End
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.rank_ends import kind_of
from trainjob_operator.core.ends.silence import find_lost
from trainjob_operator.core.lifecycle import end_attempt
from trainjob_operator.core.turn import Turn


def may_have_completed(turn: Turn, incident: Incident) -> bool:
    """Whether no member is left to say how the attempt ended, and storage may know. Asked before the attempt's end
    is written.
    """
    attempt = turn.running
    if (
        turn.plain
        or attempt is None
        or attempt.running_at is None
        or incident.rank is not None
        or turn.spec.checkpoint.storage is None
    ):
        return False
    lost = find_lost(turn)
    return not any(
        _denies_completion(turn, slot) for slot in turn.members() if slot in turn.kids.live and slot not in lost
    )


def _denies_completion(turn: Turn, slot: int) -> bool:
    """Whether a member that lives knows that training was not over: its own ranks were not. Once they have ended well,
    only rank 0's agent, or storage, knows the rest.
    """
    view = turn.word(slot)
    if view is None:
        return False
    return not view.quiet or not view.ranks or any(kind_of(report) != contract.END_OK for report in view.ranks)


def defer(turn: Turn, reason: str, message: str) -> None:
    """The job fails for this reason unless a fresh worker finds the run complete."""
    turn.change(verdict=Verdict(reason=reason, message=message[: contract.MESSAGE_LIMIT]))
    turn.say("before the job fails, a fresh worker looks whether training had completed")


def judge(turn: Turn) -> Answer:
    """A fresh worker has joined and found no end record. (One that found it has completed the job before.)"""
    if turn.status.verdict is not None and any(
        (view := turn.word(slot)) is not None and view.joined for slot in turn.members()
    ):
        return confirm(turn, turn.status.verdict.reason)
    return None


def confirm(turn: Turn, end_cause: str) -> Answer:
    """The verdict stands."""
    verdict, first_cause = turn.status.verdict, turn.status.last_failure
    if verdict is None:
        return None
    end_attempt(turn, end_cause)
    return End(failed=True, reason=verdict.reason, message=verdict.message, cause=first_cause)
