"""The table of causes is whole, and its rows do not contradict each other."""

from __future__ import annotations

import pytest

from trainjob_api import contract
from trainjob_operator.core.ends.causes import CAUSES, cause_of

REASONS = sorted(value for name, value in vars(contract).items() if name.startswith("REASON_"))


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_contract_has_a_row(reason: str) -> None:
    assert reason in CAUSES


def test_the_table_has_rows_for_nothing_else() -> None:
    assert sorted(CAUSES) == REASONS


@pytest.mark.parametrize("reason", REASONS)
def test_a_row_does_not_contradict_itself(reason: str) -> None:
    cause = cause_of(reason)
    assert not (cause.counted and cause.preemption), "an incident is counted in one place"
    assert cause.counted or not cause.strikes, "only what is counted makes a worker suspect"
    assert not (cause.hopeless and not cause.counted), "what fails the job at once is a failure"
    assert (cause.grace_s > 0) == cause.planned


def test_a_reason_of_a_newer_version_is_a_plain_failure() -> None:
    assert cause_of("Hang").counted and cause_of("Hang").restart and not cause_of("Hang").planned
