"""A pod is lost: only that one is made anew, the others stay as they are."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.scenario import Stage, wait_until
from trainjob.launch.local import lock
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract

pytestmark = pytest.mark.slow


def agent_of(stage: Stage, pod: str) -> int:
    """Pid of the agent of that pod: of what looks like it the oldest, for its children do until they run a program."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        mine = any(v.startswith(contract.ENV_WORK_DIR.encode() + b"=" + os.fsencode(stage.root)) for v in variables)
        if mine and b"trainjob.launch.local.pod" in command and f"{contract.ENV_POD_NAME}={pod}".encode() in variables:
            found.append(int(folder.name))
    if not found:
        raise LookupError(pod)
    return min(found, key=lambda pid: int(lock.started(pid) or sys.maxsize))


def test_a_killed_agent_is_a_lost_pod_and_only_that_pod_is_new(stage: Stage) -> None:
    killed: list[int] = []

    def kill_once(_event: LocalEvent) -> None:
        saved = [note for note in stage.read_notes() if note.what == "saved" and note.step >= 3]
        if saved and not killed:
            killed.append(agent_of(stage, "job-1"))
            os.kill(killed[0], signal.SIGKILL)
            stage.go()

    told = stage.run(stage.job("--steps", "60", "--pause", "0.05", "--hold", "30"), kill_once)
    assert killed
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 2
    assert told.status.slots == "0,2", told.text()
    attempt = told.status.attempt
    assert attempt is not None and attempt.members == "0,2"
    assert told.starts(0)[-1][1] == told.starts(1)[-1][1] > 0
    assert told.status.failures.counted == 1


def test_the_agent_of_rank_zero_may_be_lost_too(stage: Stage) -> None:
    killed: list[int] = []

    def kill_once(_event: LocalEvent) -> None:
        if len(stage.committed()) >= 3 and not killed:
            killed.append(agent_of(stage, "job-0"))
            os.kill(killed[0], signal.SIGKILL)
            stage.go()

    told = stage.run(stage.job("--steps", "60", "--pause", "0.05", "--hold", "30"), kill_once)
    assert killed
    assert told.status.holds("Complete"), told.text()
    attempt = told.status.attempt
    assert attempt is not None and attempt.members == "1-2", told.text()
    assert told.starts(0)[-1][1] == told.starts(1)[-1][1] > 0
    wait_until(lambda: stage.committed()[-1] == f"1-2-{60 - told.starts(0)[-1][1]}")
