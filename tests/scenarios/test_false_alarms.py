"""No hang is told of where there is none: steps of very different lengths, long calls into C, seconds of waiting, a slow
disk, an agent that stands still, a laptop that sleeps. TRAINJOB_TEST_FALSE_ALARM_MINUTES says for how long; without it this is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scenarios.test_pods import agent_of
from support.freezer import freezer
from support.patience import HANG_S
from support.scenario import Stage
from trainjob.launch.local.backend import LocalEvent

MINUTES = float(os.environ.get("TRAINJOB_TEST_FALSE_ALARM_MINUTES", "0"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MINUTES, reason="minutes: TRAINJOB_TEST_FALSE_ALARM_MINUTES=30"),
    pytest.mark.timeout(60 * MINUTES + HANG_S),
]

LOOP = Path(__file__).parent / "loops" / "irregular.py"
STOPS_S, BETWEEN_S = 60.0, 180.0
"""How long an agent stands still, and from one time to the next."""
SLEEPS_S, AWAKE_S = 40.0, 50.0
"""How long a laptop sleeps, and from one time to the next."""


def test_nothing_that_only_takes_long_is_called_a_hang(stage: Stage) -> None:
    over, told_of = threading.Event(), list[str]()

    def stop_an_agent_now_and_then() -> None:
        while not over.wait(BETWEEN_S):
            with contextlib.suppress(LookupError, ProcessLookupError):
                pid = agent_of(stage, "job-0")
                os.kill(pid, signal.SIGSTOP)
                over.wait(STOPS_S)
                os.kill(pid, signal.SIGCONT)

    def listen(event: LocalEvent) -> None:
        if event.job is not None and event.job.status.hang is not None:
            told_of.append(event.job.status.hang.model_dump_json())

    stopping = threading.Thread(target=stop_an_agent_now_and_then)
    stopping.start()
    try:
        told = stage.run(stage.job(str(60 * MINUTES), script=LOOP, max_failures=100), listen)
    finally:
        over.set()
        stopping.join()
    assert not told_of, told_of[0]
    assert told.status.holds("Complete"), told.text()
    print(f"{MINUTES:g} minutes, {told.attempts} attempts, {told.status.progress.position} reports")


def _runs_on(job: subprocess.Popen[bytes]) -> bool:
    """Whether it still does after AWAKE_S."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(AWAKE_S)
    return job.poll() is None


def test_a_laptop_that_sleeps_again_and_again_is_none(tmp_path: Path) -> None:
    tj = [sys.executable, "-m", "trainjob.cli"]
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = ["--workers", "2", "--name", "laptop", "--hang", "Restart", "--plain"]
    command = [*tj, "run", *words, str(LOOP), "--", str(tmp_path), str(60 * MINUTES)]
    output, slept = tmp_path / "output", 0
    with freezer() as laptop, output.open("w") as said:
        job = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        laptop.take(job.pid)
        while _runs_on(job):
            laptop.freeze()
            time.sleep(SLEEPS_S)
            laptop.thaw()
            slept += 1
    assert job.returncode == 0, output.read_text()[-5000:]
    shown = subprocess.run([*tj, "hang", "laptop", "-o", "json"], env=environment, capture_output=True, text=True)
    assert json.loads(shown.stdout)["last"] is None, shown.stdout
    print(f"{MINUTES:g} minutes, slept {slept} times")
