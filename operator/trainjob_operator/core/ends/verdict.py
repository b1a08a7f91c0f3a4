"""The end of a job whose workers all vanished: Failed waits until a fresh worker found that training had not completed.
So does a start that would not see the end record, and would train anew what is complete: one without agents, or one
whose checkpoints go elsewhere.

Called by `decide.py`, and by both groups. The last rank may have ended well, and the end record be written, while the
word of it was lost with the pods. A fresh worker is told `check`: it starts nothing, reads the attempt's storage, and
only if there is no record the verdict stands. One worker is enough, however many the job wants.
"""

from __future__ import annotations

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import Attempt, Verdict
from trainjob_operator.core import make
from trainjob_operator.core.answers import Answer, End, Waker
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.rank_ends import kind_of
from trainjob_operator.core.ends.silence import find_lost, says_nothing
from trainjob_operator.core.lifecycle import end_attempt
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.turn import Turn

LOOK_WITHIN_S = 600.0
"""A deadline that is over by then stands: no worker may ever come up to look. People have as long from when a look was
none, and from each edit.
"""
LOOK_TRIES = 6
"""Workers that may break one after the other before they have looked; the pauses between them add up to 31 s."""


def may_have_completed(turn: Turn, incident: Incident) -> bool:
    """Whether no member is left to say how the attempt ended, and storage may know. Asked before the attempt's end
    is written.

    A rank that ended with its container may have ended well before that: nobody is there any more who saw it.
    """
    attempt = turn.running
    if attempt is None or turn.storage is None:
        return False
    if incident.rank is not None and _denies_completion(turn, incident.slot):
        return False
    lost = find_lost(turn)
    return not any(
        _denies_completion(turn, slot) and not _is_overtaken(turn, slot, incident)
        for slot in turn.members()
        if slot in turn.kids.live and slot not in lost
    )


def _is_overtaken(turn: Turn, slot: int, incident: Incident) -> bool:
    """Whether a pod or its container went after the member's last word: that all ranks had ended by then may still be
    on its way.
    """
    view = turn.word(slot)
    return view is not None and aware(view.heard_at) < aware(incident.time)


def is_unknown(turn: Turn) -> bool:
    """Whether the newest attempt may have completed, and nobody lives who could say that it has not. Asked when the job
    is to fail for another reason than a worker's end.
    """
    attempt, failure = turn.status.attempt, turn.status.last_failure
    if attempt is None or turn.storage is None:
        return False
    if failure is not None and failure.attempt == attempt.number and failure.rank is not None:
        return False
    lost = find_lost(turn)
    return not any(
        _denies_completion(turn, slot) for slot in turn.former if slot in turn.kids.live and slot not in lost
    )


def is_looked_into(turn: Turn) -> bool:
    """Whether a look is under way, and not for too long."""
    verdict, attempt = turn.status.verdict, turn.status.attempt
    if verdict is None or attempt is None:
        return False
    since = verdict.nothing_found_at or verdict.since or attempt.ended_at
    if since is None:
        return False
    until = after(since, LOOK_WITHIN_S)
    turn.wake(until)
    return turn.now < until


def _denies_completion(turn: Turn, slot: int) -> bool:
    """Whether a member that lives knows that training was not over: its own ranks were not. Once they have ended well,
    only rank 0's agent, or storage, knows the rest. Whom nobody hears may have trained to the end since its last word.
    """
    view, pod = turn.word(slot), turn.kids.live.get(slot)
    if view is None or (pod is not None and says_nothing(turn, pod)):
        return False
    open_ends = (contract.END_OK, contract.END_LOST)
    return not view.quiet or not view.ranks or any(kind_of(report) not in open_ends for report in view.ranks)


def defer(turn: Turn, reason: str, message: str) -> None:
    """The job fails for this reason unless a fresh worker finds the run complete."""
    _call_for_a_look(turn, reason, message)
    turn.say("before the job fails, a fresh worker looks whether training had completed")


def _call_for_a_look(turn: Turn, reason: str | None, message: str) -> None:
    # The look does not wait for what starts had to wait for: one worker is enough, and it starts nothing.
    timing = turn.status.timing.model_copy(update={"retry_at": None, "gang_retry_at": None})
    turn.change(failures=turn.status.failures.model_copy(update={"early_in_row": 0}), timing=timing)
    turn.judge_by(Verdict(reason=reason, message=message[: contract.MESSAGE_LIMIT], since=turn.now))


# --- Before a start that would not see the end record -----------------------------------------------------------------


def leave_open(turn: Turn) -> None:
    """The newest attempt, which is over, may have completed: what comes next is to find out."""
    _leave(turn, is_open=True)


def _leave(turn: Turn, *, is_open: bool) -> None:
    attempt = turn.status.attempt
    if attempt is not None:
        turn.change(attempt=attempt.model_copy(update={"open_end": is_open or None}))


def is_open(turn: Turn) -> bool:
    """Whether nobody knows if the newest attempt had completed, and nobody has looked."""
    attempt = turn.status.attempt
    return attempt is not None and attempt.state == "Ended" and bool(attempt.open_end)


def look_first(turn: Turn) -> Answer:
    """After an attempt whose end is open, a start that would not see its end record waits for a look. (Agents that
    store at the same place look when they join.)
    """
    attempt = turn.status.attempt
    if turn.just_ended is not None and attempt is not None and not make.is_plain(attempt.make) and is_unknown(turn):
        leave_open(turn)
    if turn.status.verdict is not None or not is_open(turn) or turn.is_suspended or turn.blocked is not None:
        return None
    if _sees_the_end(turn):
        return None
    _call_for_a_look(turn, None, "the workers to come would not see that, and would train anew")
    turn.say("before the next attempt begins, a worker looks whether training had completed")
    return None


def _sees_the_end(turn: Turn) -> bool:
    """Whether the next attempt's workers find the newest one's end record by themselves."""
    return defaults.uses_agent(turn.spec) and make.stays(turn.spec, turn.status)


def _is_needless(turn: Turn, verdict: Verdict) -> bool:
    """Whether no such start is to come now: the job is suspended, or its workers see the end record again."""
    return verdict.reason is None and (turn.spec.suspend or _sees_the_end(turn))


# --- What the look found ----------------------------------------------------------------------------------------------


def judge(turn: Turn) -> Answer:
    """A worker has looked and found no end record. (One that found it has completed the job before.)"""
    verdict, attempt = turn.status.verdict, turn.status.attempt
    if verdict is None or attempt is None:
        return None
    if _is_needless(turn, verdict):
        turn.judge_by(None)
        return None
    if turn.status.observed_generation not in (None, turn.job.metadata.generation):
        # Whoever edits the job may have put right what the look needs: it has its whole time from now.
        verdict = verdict.model_copy(update={"since": turn.now, "nothing_found_at": None})
        turn.judge_by(verdict)
    looks = [view for pod in turn.kids.live.values() if (view := turn.kids.agent(pod)) is not None]
    looked = next((view for view in looks if view.checked == attempt.number), None)
    if looked is not None and not _may_still_write(turn, looks, attempt.number):
        elsewhere = _looked_elsewhere(attempt, looked)
        if elsewhere is not None and not verdict.nothing_found_at:
            turn.judge_by(verdict.model_copy(update={"nothing_found_at": turn.now}))
        if elsewhere is None or not is_looked_into(turn):
            return _confirm(turn, verdict, elsewhere or looked.warning)
        # Only an edit can bring the place back; the job must not be over before anybody has read this.
        turn.wait(elsewhere, event=Waker.EDIT)
        return None
    if verdict.reason is None and not is_looked_into(turn):
        return _confirm(turn, verdict, f"no worker could look within {LOOK_WITHIN_S:.0f} s")
    if not turn.spec.suspend:
        turn.wait("a worker is to look whether training had completed", event=Waker.AGENT)
    return None


def _looked_elsewhere(attempt: Attempt, looked: AgentView) -> str | None:
    """Why a look is none: the run that the attempt belongs to is not where it looked. Storage is the attempt's, but a
    volume that is mounted there is the template's, and an edit of that may have taken it away.
    """
    if attempt.run is None or looked.run is not None or looked.warning:
        return None
    return (
        f"the worker that looked whether training had completed finds nothing of run {attempt.run} in "
        f"{attempt.storage or 'storage'}: is the volume mounted there as it was? Suspend the job, put its template "
        "right, and resume it"
    )


def _may_still_write(turn: Turn, looks: list[AgentView], attempt: int) -> bool:
    """Whether rank 0's agent lives, has been in the attempt, and has not looked itself: before it does, it ends what it
    had under way, the end record too.
    """
    first, lost = turn.former[:1], find_lost(turn)
    return any(
        view.slot in first and view.slot not in lost and view.attempt == attempt and view.checked != attempt
        for view in looks
    )


def look_failed(turn: Turn, incident: Incident) -> Answer:
    """The worker that was to look broke: another one looks. It ran nothing of the user's, so nothing is counted."""
    verdict, failures = turn.status.verdict, turn.status.failures
    if verdict is None:
        return None
    turn.say(incident.message)
    end_attempt(turn, incident.reason)
    tries = failures.early_in_row + 1 if incident.counted else failures.early_in_row
    if tries >= LOOK_TRIES:
        return _confirm(turn, verdict, f"no worker could look whether training had completed: {incident.message}")
    turn.change(failures=failures.model_copy(update={"early_in_row": tries}))
    return None


def _confirm(turn: Turn, verdict: Verdict, trouble: str | None) -> Answer:
    """The verdict stands; or the job goes on."""
    if verdict.reason is not None:
        message = f"{verdict.message} ({trouble})" if trouble else verdict.message
        return End(failed=True, reason=verdict.reason, message=message, cause=turn.status.last_failure)
    _leave(turn, is_open=False)
    turn.judge_by(None)
    found = f"whether training had completed is not known ({trouble})" if trouble else "training had not completed"
    turn.say(f"{found}: the next attempt may begin")
    return None
