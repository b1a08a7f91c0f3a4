"""The error that fit() raises: what it says, and what it advises."""

from __future__ import annotations

import sys

import pytest

from support.jobs import attempt, condition, failure, job
from trainjob.launch.outcome.verdict import of_failed
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob


def failed(**more: object) -> TrainJob:
    said = condition("Failed", "True", contract.REASON_LIMIT, "spec.failurePolicy.maxFailures is 0")
    return job({"attempt": attempt(state="Ended"), "conditions": [said], "lastFailure": failure(**more)})


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("rank 1 raised ModuleNotFoundError: No module named 'einops'", f"`{sys.executable} -m pip install einops`."),
        (
            "rank 1 raised BdbQuit",
            "ScalingConfig(num_workers=0) runs the function in your terminal, where breakpoint() works.",
        ),
        (
            "rank 1 raised RuntimeError: ... current process has finished its bootstrapping phase",
            "put what starts the training below `if __name__ == '__main__':`.",
        ),
    ],
)
def test_what_its_words_tell_is_advised(message: str, advice: str) -> None:
    last = str(of_failed(failed(message=message))).splitlines()[-1]
    assert last.startswith("next: ") and last.endswith(advice)


def test_on_a_cluster_the_image_is_what_lacks_it() -> None:
    missing = failed(message="rank 1 raised ModuleNotFoundError: No module named 'einops'")
    assert "next: Install einops in the workers' image" in str(of_failed(missing, on_a_cluster=True))


@pytest.mark.parametrize(
    "given", [{}, {"message": "", "exitCode": 2, "reason": contract.REASON_EXIT, "traceback": None}]
)
def test_who_knows_no_better_says_nothing(given: dict[str, object]) -> None:
    assert "next:" not in str(of_failed(failed(**given)))


def last_of_fit(**more: object) -> str:
    """fit() restarts nothing unless it is told to."""
    document = failed(**more).to_json()
    document["spec"]["failurePolicy"] = {"maxFailures": 0}
    return str(of_failed(TrainJob.model_validate(document))).splitlines()[-1]


def test_fit_that_restarts_nothing_says_how_it_would() -> None:
    assert last_of_fit(message="rank 1 was killed by SIGKILL", reason=contract.REASON_SIGNAL, traceback=None) == (
        "next: with RunConfig(failure_config=FailureConfig(max_failures=3)) ranks that die are started again; the same "
        "fit() starts from the beginning now."
    )


def test_what_a_restart_does_not_cure_is_to_be_mended() -> None:
    said = last_of_fit()
    assert said.startswith("next: Fix ") and said.endswith(":61. The same fit() then starts from the beginning.")


def test_the_cause_is_said_once() -> None:
    said = str(of_failed(failed()))
    assert said.count("ValueError: bad batch") == 1 and "line 61, in train" in said
