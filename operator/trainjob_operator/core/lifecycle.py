"""A job's life: attempts begin and end, suspension, deadlines, the end of the job, and what is left of it afterwards.

Called by the rules in `decide.py`. Every end of an attempt goes through `end_attempt`, every end of the job through
`complete` or `fail`.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract, cut
from trainjob_api.v1alpha1 import Attempt, Failure, HistoryEntry, PartsMs, Timing
from trainjob_operator.core import accounting, boundaries, forks, make, parts
from trainjob_operator.core.answers import Answer, End
from trainjob_operator.core.children import holds_resources
from trainjob_operator.core.clocks import TOLERANCE_S
from trainjob_operator.core.model import Action, DeleteJob, DeletePod
from trainjob_operator.core.moments import after, aware, elapsed
from trainjob_operator.core.pods.naming import format_slots, pod_name, worker_slots
from trainjob_operator.core.progress import origin, take_progress
from trainjob_operator.core.turn import Outcome, Turn

HISTORY_LIMIT = 10
CLEANUP_AFTER_S = 30.0
"""Agents end by themselves when told `exit`; pods that still run this long after the end are deleted."""
NAMED_WORKERS = 8
"""Workers that a message names; more are counted."""


# --- Attempts ---------------------------------------------------------------------------------------------------------


def end_attempt(turn: Turn, cause: str, *, broke: datetime | None = None, message: str | None = None) -> None:
    """Write the end of the running attempt, if there is one; its place in the history goes with it. `broke`: when what
    ended it happened; None: now. `message`: what that was, where the cause alone does not tell it.
    """
    if turn.running is None:
        return
    take_progress(turn, at_end=True)
    note_parts(turn)
    lost_before = accounting.lost_s(turn)
    accounting.settle(turn, broke=broke, loses=cause != contract.REASON_COMPLETED)
    attempt = turn.running
    # The origin also of one that was over before anybody saw it run.
    ended = attempt.model_copy(
        update={"state": "Ended", "ended_at": turn.now, "end_cause": cause, **origin(turn, attempt)}
    )
    history = turn.status.history
    before = history[-1].ended_at if history else None
    entry = HistoryEntry(
        attempt=ended.number,
        cause=ended.cause,
        end_cause=cause,
        started_at=ended.started_at,
        ended_at=ended.ended_at,
        world_size=ended.world_size,
        resumed_from=ended.resumed_from,
        down_seconds=elapsed(ended.started_at, before) if before else None,
        position=turn.status.progress.position,
        message=cut.within(message, contract.ENDED_LIMIT) if message else None,
        lost_seconds=round(accounting.lost_s(turn) - lost_before, 3) or None,
        parts_ms=ended.parts_ms,
        from_spares=ended.from_spares,
    )
    timing = turn.status.timing.model_copy(update={"scheduled_at": None, "retry_at": None})
    turn.change(attempt=ended, history=[*history, entry][-HISTORY_LIMIT:], timing=timing, growth=None, boundary=None)


def note_parts(turn: Turn) -> None:
    """How the running attempt began, as far as its members' agents have told."""
    attempt = turn.running
    if attempt is None:
        return
    found = parts.merged(attempt, turn.words(), len(turn.members()))
    if found != (attempt.parts_ms or PartsMs()):
        attempt = attempt.model_copy(update={"parts_ms": found})
    started = forks.merged(attempt.forks, turn.words())
    if started != attempt.forks:
        attempt = attempt.model_copy(update={"forks": started})
    if attempt is not turn.running:
        turn.change(attempt=attempt)


def begin_attempt(turn: Turn, members: tuple[int, ...]) -> None:
    """Commit the next attempt; agents hear of it once this is written."""
    last = turn.status.attempt
    cause = contract.REASON_STARTED if last is None else last.end_cause or contract.REASON_STARTED
    if cause == contract.REASON_SUSPENDED:
        cause = contract.REASON_RESUMED
    kind = turn.kind
    attempt = Attempt(
        number=last.number + 1 if last else 1,
        state="Running",
        started_at=turn.now,
        members=format_slots(members),
        members_digest=None if kind.begins_before_pods else turn.kids.digest(members),
        workers=len(members),
        wished=turn.spec.workers,
        world_size=len(members) * kind.processes(turn.spec),
        cause=cause,
        make=turn.make,
        storage=turn.spec.checkpoint.storage or "",
        s3=make.store_of(turn.spec),
        parts_ms=None if last is None else parts.of_begin(last, turn.status.last_failure, turn.now),
    )
    timing = turn.status.timing.model_copy(
        update={
            "retry_at": None,
            "gang_retry_at": None,
            "gang_tries": turn.status.timing.gang_tries if kind.begins_before_pods else 0,
        }
    )
    turn.change(attempt=attempt, timing=timing, growth=None)
    turn.is_broken = False
    message = f"attempt {attempt.number} begins with {attempt.workers} workers, {attempt.world_size} ranks ({cause})"
    turn.tell("Normal", "AttemptStarted", message)
    turn.say(message)


# --- Suspension and active time ---------------------------------------------------------------------------------------


def suspend(turn: Turn) -> Answer:
    """No attempt and no pods while the job is suspended; only active time counts for its deadline. What has broken
    before is told and counted first.
    """
    timing = turn.status.timing
    if not turn.spec.suspend:
        if timing.active_since is None:
            accounting.settle(turn)
            turn.change(timing=timing.model_copy(update={"active_since": turn.now}))
        return None
    if turn.running is not None and turn.held:
        return None
    hold = None if is_cancelled(turn) else boundaries.hold(turn, contract.REASON_SUSPENDED)
    if hold is not None:
        return hold
    if timing.active_since is not None and is_cancelled(turn):
        turn.tell(
            "Normal", contract.REASON_CANCELLED, "the job was cancelled: ranks stop, pods are removed, checkpoints stay"
        )
    elif timing.active_since is not None:
        turn.tell("Normal", contract.REASON_SUSPENDED, "spec.suspend is true: ranks stop, pods are removed")
    end_attempt(turn, contract.REASON_SUSPENDED)
    if timing.active_since is not None:
        accounting.settle(turn)
    turn.change(
        timing=_stopped_clock(turn).model_copy(
            update={
                "scheduled_at": None,
                "retry_at": None,
                "gang_retry_at": None,
                "gang_tries": 0,
                "spare_retry_at": None,
                "spare_tries": 0,
            }
        ),
        growth=None,
    )
    last = turn.status.attempt
    if last is not None and last.end_cause != contract.REASON_SUSPENDED:
        # Suspended between two attempts: the next one resumes, whatever ended the last.
        turn.change(attempt=last.model_copy(update={"end_cause": contract.REASON_SUSPENDED}))
    turn.say("suspended")
    return None


def is_cancelled(turn: Turn) -> bool:
    """Whether the suspension is `tj cancel`'s; the rules treat it like any other."""
    return turn.spec.suspend and contract.ANNOTATION_CANCELLED in turn.job.metadata.annotations


def _stopped_clock(turn: Turn) -> Timing:
    """Timing with the active time added up."""
    timing = turn.status.timing
    if timing.active_since is None:
        return timing
    return timing.model_copy(
        update={"active_seconds": timing.active_seconds + elapsed(turn.now, timing.active_since), "active_since": None}
    )


def restart_on_demand(turn: Turn) -> Answer:
    """A person asks for a new attempt: the annotation differs from the one that was answered last."""
    if not is_asked_to_restart(turn) or turn.held:
        return None  # also while something that broke is to be told and counted first
    hold = boundaries.hold(turn, contract.REASON_RESTART_REQUESTED)
    if hold is not None:
        return hold
    asked = _restart_token(turn)
    if turn.running is not None:
        message = f"{contract.ANNOTATION_RESTART} is {asked!r}: the ranks start again"
        turn.tell("Normal", contract.REASON_RESTART_REQUESTED, message)
        turn.say(message)
    end_attempt(turn, contract.REASON_RESTART_REQUESTED)
    # Whoever asks does not want to wait for what earlier starts had to wait for.
    timing = turn.status.timing.model_copy(update={"retry_at": None, "gang_retry_at": None})
    turn.change(restart=asked, timing=timing, failures=turn.status.failures.model_copy(update={"early_in_row": 0}))
    return None


def is_asked_to_restart(turn: Turn) -> bool:
    """Whether that has not been answered yet."""
    return _restart_token(turn) not in ("", turn.status.restart)


def _restart_token(turn: Turn) -> str:
    return (turn.job.metadata.annotations.get(contract.ANNOTATION_RESTART) or "")[: contract.RESTART_TOKEN_LIMIT]


# --- Deadlines --------------------------------------------------------------------------------------------------------


def meet_deadlines(turn: Turn) -> Answer:
    """Fail the job when it was active for too long, or when a start takes too long."""
    timing, spec = turn.status.timing, turn.spec
    if timing.active_since is None:
        return None
    if spec.active_deadline_seconds is not None:
        end = after(timing.active_since, max(0.0, spec.active_deadline_seconds - timing.active_seconds))
        if turn.now >= end:
            message = (
                f"the job was active for {spec.active_deadline_seconds} s (activeDeadlineSeconds) and is not complete"
            )
            return End(failed=True, reason=contract.REASON_DEADLINE, message=message)
        turn.wake(end)
    return _meet_startup_deadline(turn, timing.scheduled_at)


def _meet_startup_deadline(turn: Turn, scheduled_at: datetime | None) -> Answer:
    limit, attempt = turn.spec.startup_deadline_seconds, turn.running
    if limit is None or scheduled_at is None or (attempt is not None and attempt.running_at is not None):
        return None
    end = after(scheduled_at, limit)
    if turn.now < end:
        turn.wake(end)
        return None
    late = [slot for slot in turn.members() or worker_slots(turn.status) if not _has_started(turn, slot)]
    message = (
        f"the ranks did not run {limit} s after all pods had been scheduled (startupDeadlineSeconds); not "
        f"started: {name_workers(turn, late)}"
    )
    return End(failed=True, reason=contract.REASON_STARTUP_DEADLINE, message=message)


def _has_started(turn: Turn, slot: int) -> bool:
    view = turn.word(slot)
    return view is not None and view.joined


def name_workers(turn: Turn, slots: list[int]) -> str:
    """`digits-1, digits-4`; of many the first few and a count."""
    return name_pods([pod_name(turn.job.metadata.name, slot) for slot in slots])


def name_pods(pods: list[str]) -> str:
    """`digits-1, digits-4`; of many the first few and a count."""
    names = ", ".join(pods[:NAMED_WORKERS])
    return f"{names} and {len(pods) - NAMED_WORKERS} more" if len(pods) > NAMED_WORKERS else names


# --- The end of the job -----------------------------------------------------------------------------------------------


def complete(turn: Turn, message: str) -> None:
    """The job is done: nothing runs again."""
    take_progress(turn, at_end=True)  # also where no attempt ran any more, and a look found the end record
    end_attempt(turn, contract.REASON_COMPLETED)
    _finish(turn, Outcome("Complete", contract.REASON_COMPLETED, message))
    turn.tell("Normal", contract.REASON_COMPLETED, message)


def fail(turn: Turn, reason: str, message: str, cause: Failure | None = None) -> None:
    """The job has failed: nothing runs again. `cause` is the first cause; without one, the verdict itself is."""
    if turn.outcome is not None:
        return
    attempt = turn.status.attempt
    end_attempt(turn, reason, message=message)
    message = message[: contract.MESSAGE_LIMIT]
    cause = cause or Failure(attempt=attempt.number if attempt else 0, time=turn.now, reason=reason, message=message)
    turn.change(last_failure=cause)
    _finish(turn, Outcome("Failed", reason, message))
    turn.tell("Warning", reason, message)


def _finish(turn: Turn, outcome: Outcome) -> None:
    accounting.settle(turn)
    turn.outcome = outcome
    paused = dict.fromkeys(("retry_at", "gang_retry_at", "spare_retry_at"))
    timing = _stopped_clock(turn).model_copy(update={"finished_at": turn.now, **paused})
    turn.change(timing=timing, verdict=None, slots=format_slots(worker_slots(turn.status)), spares="")
    turn.say(f"{outcome.condition}: {outcome.message}")


def answer_edit(turn: Turn) -> None:
    """A job that is over was edited (scaled, suspended, resumed): that it changes nothing is said, once an edit."""
    seen, generation = turn.status.observed_generation, turn.job.metadata.generation
    if seen is None or seen == generation:
        return
    turn.change(observed_generation=generation)
    outcome = "Complete" if turn.status.holds("Complete") else "Failed"
    turn.tell(
        "Warning",
        contract.REASON_FINISHED,
        f"the spec was edited, but the job is {outcome} and never runs again; of its spec only podCleanup and "
        "ttlSecondsAfterFinished still count. To run it once more, delete it and create it anew",
    )


def actions_after_end(turn: Turn) -> list[Action]:
    """Clean-up of the pods by podCleanup, and of the job itself when its time to live is over."""
    finished_at = _finished_at(turn)
    expiry = turn.spec.ttl_seconds_after_finished
    if expiry is not None:
        gone = after(finished_at, expiry)
        if turn.now >= gone and turn.outcome is None:
            turn.say(f"finished more than {expiry} s ago (ttlSecondsAfterFinished): the TrainJob is deleted")
            return [DeleteJob(turn.job.metadata.uid)]
        turn.wake(max(gone, after(turn.now, 1.0)))
    policy = turn.spec.pod_cleanup
    if policy == "None":
        return []
    ours = [pod for pod in turn.observed.pods if pod.owned and not pod.deleting]
    running = [pod for pod in ours if holds_resources(pod)]
    doomed = [pod for pod in ours if pod not in running] if policy == "All" else []
    until = after(finished_at, CLEANUP_AFTER_S)
    # One that lies further ahead was written by a clock that was: then the pods have had their time.
    if running and turn.now < until <= after(turn.now, CLEANUP_AFTER_S + TOLERANCE_S):
        turn.wake(until)
    else:
        doomed += running
    return [DeletePod(pod.name, pod.uid) for pod in doomed]


def _finished_at(turn: Turn) -> datetime:
    status = turn.status
    moments = [
        c.last_transition_time for c in status.conditions if c.type in ("Complete", "Failed") and c.status == "True"
    ]
    return aware(status.timing.finished_at or next(iter(moments), turn.now))
