"""What an incident costs."""

from __future__ import annotations

from typing import Any

import pytest

from support.core import T0, seconds
from trainjob_api import contract
from trainjob_api.v1alpha1 import FailurePolicy, Failures
from trainjob_operator.core.ends.budget import AVOID_NODES_LIMIT, Record, back_off, charge, is_early
from trainjob_operator.core.ends.incident import Incident


def incident(reason: str = contract.REASON_EXIT, **fields: Any) -> Incident:
    values: dict[str, Any] = {
        "reason": reason,
        "time": T0,
        "message": "rank 1 broke",
        "slot": 1,
        "rank": 1,
        "exit_code": 1,
        "node": "n1",
        "strikes": True,
    }
    return Incident(**values | fields)


def record(*, progressed: bool = False, early: bool = False, reported_ever: bool = False) -> Record:
    return Record(progressed=progressed, early=early, reported_ever=reported_ever)


@pytest.mark.parametrize(
    ("limit", "counted_before", "fails"),
    [(3, 0, False), (3, 2, False), (3, 3, True), (0, 0, True), (1, 0, False), (1, 1, True), (-1, 1000, False)],
)
def test_n_failures_are_answered_the_next_one_fails(limit: int, counted_before: int, fails: bool) -> None:
    cost = charge(FailurePolicy(max_failures=limit), Failures(counted=counted_before), incident(), record(), [1])
    assert cost.failures.counted == counted_before + 1
    assert (cost.fatal is not None) == fails
    if cost.fatal:
        reason, message = cost.fatal
        assert reason == contract.REASON_LIMIT
        assert f"maxFailures is {limit}" in message
        assert "rank 1 broke" in message


RULES = [
    {"exit_codes": [42, 137], "action": "Fail"},
    {"exit_codes": [43], "action": "Ignore"},
    {"exit_codes": [42, 44], "action": "Restart"},
]


@pytest.mark.parametrize(
    ("fields", "counted", "fatal"),
    [
        ({"exit_code": 42}, 1, contract.REASON_RULE),
        ({"exit_code": None, "signal": 9}, 1, contract.REASON_RULE),
        ({"exit_code": 43}, 0, None),
        ({"exit_code": 44}, 1, None),
        ({"exit_code": 1}, 1, None),
        ({"exit_code": 42, "counted": False}, 0, None),
        ({"rank": None, "exit_code": 80, "agents_own": True}, 1, None),
        ({"rank": None, "exit_code": 80}, 1, contract.REASON_RULE),
        ({"rank": None, "exit_code": 137}, 1, contract.REASON_RULE),
    ],
)
def test_rules_by_exit_code_first_match_wins(fields: dict[str, Any], counted: int, fatal: str | None) -> None:
    policy = FailurePolicy.model_validate(
        {"max_failures": 9, "rules": [*RULES, {"exit_codes": [80], "action": "Fail"}]}
    )
    cost = charge(policy, Failures(), incident(**fields), record(), [1])
    assert cost.failures.counted == counted
    assert (cost.fatal[0] if cost.fatal else None) == fatal


@pytest.mark.parametrize("reason", [contract.REASON_START, contract.REASON_NOT_SHARED])
def test_what_cannot_start_is_not_tried_again(reason: str) -> None:
    cost = charge(FailurePolicy(max_failures=-1), Failures(), incident(reason), record(), [1])
    assert cost.fatal is not None
    assert cost.fatal[0] == reason


def test_what_has_run_before_is_tried_again_when_it_cannot_start() -> None:
    """A network file system that is gone for a moment looks like a script that was never there."""
    incident_, before = incident(contract.REASON_START), record(reported_ever=True)
    assert charge(FailurePolicy(max_failures=1), Failures(), incident_, before, [1]).fatal is None
    spent = charge(FailurePolicy(max_failures=1), Failures(counted=1), incident_, before, [1]).fatal
    assert spent is not None and spent[0] == contract.REASON_LIMIT
    unshared = charge(FailurePolicy(), Failures(), incident(contract.REASON_NOT_SHARED), before, [1])
    assert unshared.fatal is not None


@pytest.mark.parametrize(
    ("since", "progressed", "reported_ever", "limit", "fails"),
    [
        (2, False, True, 3, True),
        (1, False, True, 3, False),
        (2, True, True, 3, False),
        (2, False, False, 3, False),
        (9, False, True, 0, False),
    ],
)
def test_failures_without_progress(since: int, progressed: bool, reported_ever: bool, limit: int, fails: bool) -> None:
    policy = FailurePolicy(max_failures=-1, no_progress_attempts=limit)
    cost = charge(
        policy,
        Failures(since_progress=since),
        incident(),
        record(progressed=progressed, reported_ever=reported_ever),
        [1],
    )
    assert cost.failures.since_progress == (0 if progressed else since + 1)
    assert (cost.fatal[0] if cost.fatal else None) == (contract.REASON_NO_PROGRESS if fails else None)


def test_the_second_strike_replaces_the_pod_and_avoids_its_node() -> None:
    first = charge(FailurePolicy(), Failures(), incident(), record(), [0, 1])
    assert (first.replace, first.failures.strikes) == (None, {"1": 1})
    second = charge(FailurePolicy(), first.failures, incident(), record(), [0, 1])
    assert (second.replace, second.failures.strikes, second.failures.avoid_nodes) == (1, {}, ["n1"])


@pytest.mark.parametrize(
    "second",
    [
        incident(slot=0),
        incident(contract.REASON_COMMUNICATION, strikes=False),
        incident(contract.REASON_DAMAGED, counted=False),
    ],
)
def test_only_the_same_worker_strikes_twice(second: Incident) -> None:
    assert charge(FailurePolicy(), Failures(strikes={"1": 1}), second, record(), [0, 1]).replace is None


def test_progress_forgives_strikes() -> None:
    assert charge(
        FailurePolicy(), Failures(strikes={"1": 1}), incident(), record(progressed=True), [1]
    ).failures.strikes == {"1": 1}


def test_strikes_are_kept_for_listed_slots_only() -> None:
    assert charge(
        FailurePolicy(), Failures(strikes={"0": 1, "7": 1, "x": 1}), incident(), record(), [0, 1]
    ).failures.strikes == {"0": 1, "1": 1}


def test_the_oldest_avoided_node_is_forgiven() -> None:
    nodes = [f"old-{i}" for i in range(AVOID_NODES_LIMIT)]
    cost = charge(FailurePolicy(), Failures(strikes={"1": 1}, avoid_nodes=nodes), incident(), record(), [1])
    assert cost.failures.avoid_nodes == [*nodes[1:], "n1"]


def test_back_off_doubles_from_the_second_early_end_on() -> None:
    assert [back_off(n) for n in range(12)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.parametrize(
    ("fields", "early", "in_row"),
    [
        ({}, False, 0),
        ({}, True, 4),
        ({"reason": contract.REASON_STORAGE}, False, 4),
        ({"reason": contract.REASON_DAMAGED, "counted": False}, True, 4),
    ],
)
def test_early_ends_in_a_row(fields: dict[str, Any], early: bool, in_row: int) -> None:
    cost = charge(FailurePolicy(), Failures(early_in_row=3), incident(**fields), record(early=early), [1])
    assert cost.failures.early_in_row == in_row
    assert cost.back_off_s == back_off(in_row)


@pytest.mark.parametrize(("limit", "before", "fails"), [(-1, 99, False), (0, 0, True), (2, 1, False), (2, 2, True)])
def test_preemptions_have_a_budget_of_their_own(limit: int, before: int, fails: bool) -> None:
    policy = FailurePolicy(max_failures=0, max_preemptions=limit)
    lost = incident(reason=contract.REASON_PREEMPTED, counted=False)
    cost = charge(policy, Failures(preemptions=before), lost, record(), [])
    assert (cost.failures.preemptions, cost.failures.counted) == (before + 1, 0)
    assert (cost.fatal is not None and cost.fatal[0] == contract.REASON_PREEMPTION_LIMIT) == fails
    assert cost.fatal is None or f"maxPreemptions is {limit}" in cost.fatal[1]


def test_early_is_within_ten_seconds() -> None:
    assert is_early(T0 + seconds(9.9), T0)
    assert not is_early(T0 + seconds(10), T0)


NAME_ERROR = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nNameError: name x is not defined'
)
AWAY = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nConnectionError: no answer'


@pytest.mark.parametrize(
    ("fields", "before", "limit", "fails"),
    [
        ({}, NAME_ERROR, 3, True),
        ({}, NAME_ERROR, -1, False),
        ({}, None, 3, False),
        ({}, NAME_ERROR.replace("line 3", "line 4"), 3, False),
        ({"reported_ever": True}, NAME_ERROR, 3, False),
        ({"progressed": True}, NAME_ERROR, 3, False),
        ({}, AWAY, 3, False),
    ],
)
def test_the_same_mistake_twice_before_the_first_report_is_not_tried_again(
    fields: dict[str, bool], before: str | None, limit: int, fails: bool
) -> None:
    now = AWAY if before == AWAY else NAME_ERROR
    raised = incident(contract.REASON_USER_ERROR, traceback=now)
    earlier = None if before is None else incident(contract.REASON_USER_ERROR, traceback=before, rank=0).failure(1)
    base: dict[str, Any] = {"progressed": False, "early": True, "reported_ever": False}
    cost = charge(
        FailurePolicy(max_failures=limit), Failures(counted=1), raised, Record(**base | fields, before=earlier), [1]
    )
    assert (cost.fatal is not None) == fails
    if cost.fatal:
        reason, message = cost.fatal
        assert reason == contract.REASON_USER_ERROR
        assert message == "rank 1 broke; the same error twice in a row, before the first report: a restart cannot help"


@pytest.mark.parametrize(
    ("code", "before", "fields", "fails"),
    [
        (2, 2, {}, True),
        (2, 2, {"reported_ever": True}, False),
        (2, 1, {}, False),
        (1, 1, {}, False),
        (3, 3, {}, False),
    ],
)
def test_arguments_that_are_refused_twice_before_the_first_report_are_not_tried_again(
    code: int, before: int, fields: dict[str, bool], fails: bool
) -> None:
    base: dict[str, Any] = {"progressed": False, "early": True, "reported_ever": False}
    record = Record(**base | fields, before=incident(contract.REASON_EXIT, exit_code=before).failure(1))
    ended = incident(contract.REASON_EXIT, exit_code=code)
    cost = charge(FailurePolicy(max_failures=3), Failures(counted=1), ended, record, [1])
    assert (cost.fatal is not None and cost.fatal[0] == contract.REASON_EXIT) == fails


EXITS = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    sys.exit(3)\nSystemExit: 3'
CAUGHT = "ConnectionError: no answer\n\nDuring handling of the above exception, another exception occurred:\n\n" + EXITS


@pytest.mark.parametrize(
    ("now", "before", "code", "fields", "fails"),
    [
        (EXITS, EXITS, 3, {}, True),
        (EXITS, EXITS, 4, {}, False),
        (EXITS, EXITS, 3, {"reported_ever": True}, False),
        (EXITS, EXITS.replace("line 3", "line 4"), 3, {}, False),
        (None, None, 3, {}, False),
        (CAUGHT, CAUGHT, 3, {}, False),
    ],
    ids=["the same", "another code", "it has reported", "elsewhere", "nobody knows where", "it caught what may pass"],
)
def test_a_script_that_ends_itself_twice_in_one_place_is_not_tried_again_whichever_rank_was_first(
    now: str | None, before: str | None, code: int, fields: dict[str, bool], fails: bool
) -> None:
    base: dict[str, Any] = {"progressed": False, "early": True, "reported_ever": False}
    first = incident(contract.REASON_EXIT, exit_code=code, rank=1, pod="digits-1", traceback=before).failure(1)
    ended = incident(contract.REASON_EXIT, exit_code=3, rank=0, pod="digits-0", traceback=now)
    cost = charge(FailurePolicy(max_failures=3), Failures(counted=1), ended, Record(**base | fields, before=first), [1])
    assert (cost.fatal is not None and "the same error twice in a row" in cost.fatal[1]) == fails


@pytest.mark.parametrize(
    ("said", "fields", "policy", "fails"),
    [
        ("train.py: error: unrecognized arguments: --lrr", {}, {}, True),
        ("Error: No such option: --lrr", {}, {}, True),
        ("", {}, {}, False),
        ("train.py: error: unrecognized arguments: --lrr", {"reported_ever": True}, {}, False),
        ("train.py: error: unrecognized arguments: --lrr", {}, {"max_failures": -1}, False),
    ],
)
def test_arguments_that_the_scripts_parser_refuses_end_the_job_at_once(
    said: str, fields: dict[str, bool], policy: dict[str, Any], fails: bool
) -> None:
    base: dict[str, Any] = {"progressed": False, "early": True, "reported_ever": False, "before": None}
    message = "rank 0 on digits-0 ended with exit code 2" + (f": {said}" if said else "")
    ended = incident(contract.REASON_EXIT, exit_code=2, message=message)
    asked = FailurePolicy.model_validate({"max_failures": 3, **policy})
    cost = charge(asked, Failures(counted=0), ended, Record(**base | fields), [1])
    assert (cost.fatal is not None and "the same arguments" in cost.fatal[1]) == fails


LOADER = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
GONE = "RuntimeError: DataLoader worker (pid(s) {}) exited unexpectedly"


@pytest.mark.parametrize(
    ("now", "before", "fails"),
    [
        (LOADER + GONE.format(28074), LOADER + GONE.format(26960), True),
        (LOADER + GONE.format(28074), LOADER.replace("line 3", "line 4") + GONE.format(26960), False),
        # The kernel ended it, perhaps for its memory: the budget's.
        (
            f"{LOADER}RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n\n{LOADER}{GONE.format(7)}",
            f"{LOADER}RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.\n\n{LOADER}{GONE.format(9)}",
            False,
        ),
    ],
)
def test_a_pid_in_its_text_makes_no_other_error(now: str, before: str, fails: bool) -> None:
    earlier = incident(contract.REASON_USER_ERROR, traceback=before, rank=0).failure(1)
    again = Record(progressed=False, early=True, reported_ever=False, before=earlier)
    raised = incident(contract.REASON_USER_ERROR, traceback=now)
    cost = charge(FailurePolicy(max_failures=3), Failures(counted=1), raised, again, [1])
    assert (cost.fatal is not None) == fails


@pytest.mark.parametrize(
    ("fields", "policy", "pod", "now", "fails"),
    [
        ({}, {}, "digits-1", NAME_ERROR, True),
        # Its machine may be the cause: first it is replaced.
        ({}, {}, "digits-0", NAME_ERROR, False),
        ({"progressed": True}, {}, "digits-1", NAME_ERROR, False),
        ({}, {}, "digits-1", NAME_ERROR.replace("line 3", "line 4"), False),
        ({}, {}, "digits-1", AWAY, False),
        ({}, {"max_failures": -1}, "digits-1", NAME_ERROR, False),
        ({}, {"no_progress_attempts": 0}, "digits-1", NAME_ERROR, False),
        ({}, {"rules": [{"exitCodes": [1], "action": "Restart"}]}, "digits-1", NAME_ERROR, False),
    ],
)
def test_the_same_mistake_in_two_workers_in_a_row_is_not_tried_again_where_nothing_was_gained(
    fields: dict[str, bool], policy: dict[str, Any], pod: str, now: str, fails: bool
) -> None:
    before = incident(contract.REASON_USER_ERROR, traceback=NAME_ERROR if now != AWAY else AWAY, pod="digits-0")
    base: dict[str, Any] = {"progressed": False, "early": True, "reported_ever": True}
    achieved = Record(**base | fields, before=before.failure(1))
    raised = incident(contract.REASON_USER_ERROR, traceback=now, pod=pod)
    asked = FailurePolicy.model_validate({"max_failures": 9, "no_progress_attempts": 5, **policy})
    cost = charge(asked, Failures(counted=1, since_progress=1), raised, achieved, [0, 1])
    assert (cost.fatal is not None) == fails
    if cost.fatal:
        reason, message = cost.fatal
        assert reason == contract.REASON_USER_ERROR and message.startswith(
            "rank 1 broke; the attempt before ended by the same error on another worker"
        )


@pytest.mark.parametrize(
    ("pod", "code", "place", "fails"),
    [
        ("digits-1", 3, 5, True),
        ("digits-0", 3, 5, False),
        ("digits-1", 4, 5, False),
        ("digits-1", 3, 6, False),
        ("digits-1", 2, 5, False),
        ("digits-1", 3, None, False),
    ],
)
def test_so_is_the_same_exit_of_two_workers_in_one_place(pod: str, code: int, place: int | None, fails: bool) -> None:
    def exits(pod: str, code: int, place: int | None) -> Incident:
        trace = NAME_ERROR.replace("line 3", f"line {place}") if place is not None else None
        return incident(contract.REASON_EXIT, traceback=trace, pod=pod, exit_code=code)

    first = 5 if place is not None else None
    before = exits("digits-0", 2 if code == 2 else 3, first)
    achieved = Record(progressed=False, early=True, reported_ever=True, before=before.failure(1))
    asked = FailurePolicy(max_failures=9, no_progress_attempts=5)
    cost = charge(asked, Failures(counted=1, since_progress=1), exits(pod, code, place), achieved, [0, 1])
    assert (cost.fatal is not None) == fails


@pytest.mark.parametrize("ended", ["bdb.BdbQuit", "EOFError: EOF when reading a line"])
@pytest.mark.parametrize("max_failures", [3, -1])
@pytest.mark.parametrize("reported", [False, True])
def test_a_rank_that_asks_for_a_terminal_is_hopeless_at_once(max_failures: int, reported: bool, ended: str) -> None:
    quits = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{ended}'
    raised = incident(contract.REASON_USER_ERROR, traceback=quits)
    achieved = record(progressed=reported, reported_ever=reported)
    fatal = charge(FailurePolicy(max_failures=max_failures), Failures(), raised, achieved, [1]).fatal
    assert fatal is not None and fatal[0] == contract.REASON_USER_ERROR
    assert fatal[1] == "rank 1 broke; a rank has no terminal, and a restart gives it none"
    restart = FailurePolicy.model_validate({"rules": [{"exitCodes": [1], "action": "Restart"}], "maxFailures": 3})
    assert charge(restart, Failures(), raised, achieved, [1]).fatal is None


@pytest.mark.parametrize(("kind", "fails"), [("trainjob.launch.errors.LaunchError", True), ("RuntimeError", False)])
def test_ranks_that_call_fit_are_hopeless_at_once(kind: str, fails: bool) -> None:
    said = f"{kind}: train.py calls fit() in each of the 2 ranks, and each {contract.JOBS_OF_RANKS}: run it alone"
    raised = incident(contract.REASON_USER_ERROR, traceback=f"Traceback (most recent call last):\n{said}")
    fatal = charge(FailurePolicy(max_failures=3), Failures(), raised, record(), [1]).fatal
    assert (fatal == (contract.REASON_USER_ERROR, "rank 1 broke; a restart cannot help")) == fails


def test_a_checkpoint_that_is_named_and_damaged_is_hopeless_at_once() -> None:
    said = f"StorageError: resumeFrom: checkpoint /s/1-1-2 {contract.ORIGIN_DAMAGED}. Name another one, or none."
    damaged = incident(contract.REASON_STORAGE, message=said)
    fatal = charge(FailurePolicy(max_failures=3), Failures(), damaged, record(), [1]).fatal
    assert fatal == (contract.REASON_STORAGE, f"{said}; a restart is told to resume from the same checkpoint")
    other = incident(contract.REASON_STORAGE, message="StorageError: no room")
    assert charge(FailurePolicy(max_failures=3), Failures(), other, record(), [1]).fatal is None


def test_a_rule_that_asks_for_restarts_wins() -> None:
    raised = incident(contract.REASON_USER_ERROR, traceback=NAME_ERROR)
    policy = FailurePolicy.model_validate({"rules": [{"exitCodes": [1], "action": "Restart"}]})
    again = Record(progressed=False, early=True, reported_ever=False, before=raised.failure(1))
    assert charge(policy, Failures(counted=1), raised, again, [1]).fatal is None
