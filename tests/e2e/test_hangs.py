"""A rank that stands still on a cluster: who looks is told which, and where that is wished the job comes back by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from support import e2e, gated
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

STEADY = ("--pause", "0.3", "--steps", "1000")
"""Reports all the time, and never comes to its end here."""


def called(*words: str, namespace: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainjob.cli", *words, "-n", namespace],
        capture_output=True,
        text=True,
        timeout=e2e.PATIENCE_S,
    )


def tj(*words: str, namespace: str) -> str:
    done = called(*words, namespace=namespace)
    assert done.returncode == contract.CLI_OK, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def pod_of_rank(namespace: str, rank: int) -> str:
    """Of a job whose workers have a rank each."""
    return sorted(pod["metadata"]["name"] for pod in e2e.pods("count", namespace))[rank]


def degraded(namespace: str) -> dict[str, Any] | None:
    found = e2e.condition(e2e.job("count", namespace), "Degraded")
    return found if found is not None and found["reason"] == contract.REASON_HANG else None


def test_a_stopped_rank_is_named_and_what_runs_again_is_left_alone(namespace: str) -> None:
    gated.start("count", namespace, *STEADY)
    gated.wait_for_step("count", namespace, 6)
    pod = pod_of_rank(namespace, 1)
    e2e.kill_rank(pod, namespace, 1, signal.SIGSTOP)
    told = e2e.eventually("it is told", lambda: degraded(namespace))
    assert "rank 1" in told["message"] and "is stopped" in told["message"]
    said = tj("hang", "count", namespace=namespace)
    assert "is stopped" in said and "rank 1" in said, said
    e2e.kill_rank(pod, namespace, 1, signal.SIGCONT)
    e2e.eventually("it is well again", lambda: degraded(namespace) is None)
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["number"] == 1 and gated.counted(job) == 0


def test_with_restart_a_stopped_rank_is_replaced_and_counted_once(namespace: str) -> None:
    gated.start("count", namespace, *STEADY, spec={"hang": {"action": "Restart"}})
    gated.wait_for_step("count", namespace, 6)
    e2e.kill_rank(pod_of_rank(namespace, 1), namespace, 1, signal.SIGSTOP)
    starts = gated.wait_for_starts("count", namespace, 2, 2)
    assert all(entry.step > 0 for entry in starts), "they resume"
    gated.wait_for_step("count", namespace, 0, attempt=2)
    job = e2e.job("count", namespace)
    assert job["status"]["lastFailure"]["reason"] == contract.REASON_HANG and gated.counted(job) == 1


def test_stacks_of_all_ranks_are_shown_grouped(namespace: str) -> None:
    # A step of a line that lasts: ranks that poll would be on two lines of their loop.
    gated.start("count", namespace, "--pause", "3600", "--steps", "1")

    def together() -> bool:
        said = called("stack", "count", namespace=namespace).stdout
        return "2 of 2 ranks" in said and "gated.py" in said

    e2e.eventually("both ranks are shown at one place", together)
    one = tj("stack", "count", "--rank", "1", namespace=namespace)
    assert "rank 1" in one and "2 of 2" not in one, one
