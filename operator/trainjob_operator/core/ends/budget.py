"""What an incident costs: the rules by exit code, the budget, strikes, back-off.

Called by `decide.py` with an incident of `failures.py`; the answer goes into the same status write that ends the
attempt, so that nothing is counted twice. Knows no pods and no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure, FailurePolicy, Failures
from trainjob_operator.core.ends import mistakes
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.moments import elapsed

EARLY_S = 10.0
"""An attempt that ended sooner than this without a new report was an early end."""
BACK_OFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Wait before the next start, by early ends in a row: the first one is answered at once."""
STRIKES = 2
AVOID_NODES_LIMIT = 8


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the attempt that ended had achieved."""

    progressed: bool
    """It brought a report that no attempt before had reached."""
    early: bool
    """It ended within EARLY_S of its begin, without progress."""
    reported_ever: bool
    """The job has reported before, in any attempt."""
    before: Failure | None = None
    """The failure that ended the attempt before."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What becomes of the job."""

    failures: Failures
    """The books after the incident."""
    back_off_s: float
    replace: int | None = None
    """The slot whose pod is to be replaced."""
    fatal: tuple[str, str] | None = None
    """(reason, message) if the job has failed."""


def charge(
    policy: FailurePolicy, books: Failures, incident: Incident, record: Record, slots: Collection[int]
) -> Charge:
    """The cost of an incident. `slots` are those listed: the books keep strikes for no others."""
    rule = _rule_for(policy, incident)
    counted = incident.counted if rule is None else rule != "Ignore"
    cause = cause_of(incident.reason)
    early = books.early_in_row + 1 if record.early or cause.early else 0
    strikes = (
        {}
        if record.progressed
        else {key: n for key, n in books.strikes.items() if key.isdecimal() and int(key) in slots}
    )
    replace, avoid = None, books.avoid_nodes
    if incident.replaces:
        replace, avoid = incident.slot, _avoid(avoid, incident.node)
    elif counted and incident.strikes:
        key = str(incident.slot)
        strikes[key] = strikes.get(key, 0) + 1
        if strikes[key] >= STRIKES:
            del strikes[key]
            replace, avoid = incident.slot, _avoid(avoid, incident.node)
    elif incident.avoid_node:
        avoid = _avoid(avoid, incident.node)
    since = 0 if record.progressed else books.since_progress + 1 if counted else books.since_progress
    after = Failures(
        counted=books.counted + 1 if counted else books.counted,
        preemptions=books.preemptions + 1 if cause.preemption else books.preemptions,
        since_progress=since,
        early_in_row=early,
        strikes=strikes,
        avoid_nodes=avoid,
        last_cause=incident.reason,
    )
    fatal = (
        _fatal(policy, after, incident, rule, record)
        if counted
        else _preempted_too_often(policy, after, incident)
        if cause.preemption
        else None
    )
    return Charge(failures=after, back_off_s=back_off(early), replace=replace, fatal=fatal)


def is_early(now: datetime, started_at: datetime) -> bool:
    """Whether an attempt that ends now ends soon after its begin."""
    return elapsed(now, started_at) < EARLY_S


def back_off(early_in_row: int) -> float:
    """Seconds to wait after so many early ends in a row."""
    return BACK_OFF_S[min(max(early_in_row - 1, 0), len(BACK_OFF_S) - 1)]


def _rule_for(policy: FailurePolicy, incident: Incident) -> str | None:
    """The action of the first rule that names this exit code; 128 + n stands for signal n."""
    if cause_of(incident.reason).hopeless or not incident.counted:
        return None
    code = 128 + incident.signal if incident.signal else incident.exit_code
    if code is None or incident.agents_own:
        return None
    return next((rule.action for rule in policy.rules if code in rule.exit_codes), None)


def _fatal(
    policy: FailurePolicy, books: Failures, incident: Incident, rule: str | None, record: Record
) -> tuple[str, str] | None:
    if rule == "Fail":
        return contract.REASON_RULE, f"{incident.message}; a rule of failurePolicy says that this fails the job"
    cause = cause_of(incident.reason)
    if cause.hopeless and not (cause.until_reported and record.reported_ever):
        return incident.reason, f"{incident.message}; a restart cannot help"
    if rule is None and mistakes.asks_for_a_terminal(incident):
        return incident.reason, f"{incident.message}; a rank has no terminal, and a restart gives it none"
    if rule is None and mistakes.starts_jobs_of_its_own(incident):
        return incident.reason, f"{incident.message}; a restart cannot help"
    if rule is None and mistakes.resumes_from_damage(incident):
        return incident.reason, f"{incident.message}; a restart is told to resume from the same checkpoint"
    fresh = not (record.reported_ever or record.progressed)
    if rule is None and policy.max_failures >= 0 and fresh and mistakes.refuses_its_arguments(incident):
        return incident.reason, f"{incident.message}; a restart gives the script the same arguments"
    if rule is None and policy.max_failures >= 0 and fresh and mistakes.raised_again(incident, record.before):
        return (
            incident.reason,
            f"{incident.message}; the same error twice in a row, before the first report: a restart cannot help",
        )
    stands_still = record.reported_ever and not record.progressed and policy.no_progress_attempts > 0
    if (
        rule is None
        and policy.max_failures >= 0
        and stands_still
        and mistakes.raised_elsewhere(incident, record.before)
    ):
        return (
            incident.reason,
            f"{incident.message}; the attempt before ended by the same error on another worker, and nothing new was "
            "reported between them: a restart cannot help",
        )
    if 0 <= policy.max_failures < books.counted:
        ended = "failure" if books.counted == 1 else "failures"
        return (
            contract.REASON_LIMIT,
            f"{books.counted} {ended}, failurePolicy.maxFailures is {policy.max_failures}; first cause of the last: "
            f"{incident.message}",
        )
    if record.reported_ever and 0 < policy.no_progress_attempts <= books.since_progress:
        return (
            contract.REASON_NO_PROGRESS,
            f"{books.since_progress} failures in a row without a new report; first cause of the last: "
            f"{incident.message}",
        )
    return None


def _preempted_too_often(policy: FailurePolicy, books: Failures, incident: Incident) -> tuple[str, str] | None:
    if not 0 <= policy.max_preemptions < books.preemptions:
        return None
    times = "preemption" if books.preemptions == 1 else "preemptions"
    return (
        contract.REASON_PREEMPTION_LIMIT,
        f"{books.preemptions} {times}, failurePolicy.maxPreemptions is {policy.max_preemptions}; the last: "
        f"{incident.message}",
    )


def _avoid(nodes: list[str], node: str | None) -> list[str]:
    """The newest nodes last; the oldest are forgiven when there are too many."""
    if node is None:
        return nodes
    return [*(known for known in nodes if known != node), node][-AVOID_NODES_LIMIT:]
