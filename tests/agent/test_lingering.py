"""Ranks whose scripts have ended, and whose processes have not: they are told apart from those at work, and end as what
they said of themselves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.scenario import wait_until
from support.tuned_agent import entry
from trainjob.agent.processes.leaving import BUSY_SHARE, Idle, cpu_seconds
from trainjob_api import contract

HEAD = "import atexit, os, queue, signal, sys, threading, time, trainjob\nc = trainjob.get_context()\n"
QUICK = entry(
    processes__leaving__SAY_S=0.5,
    processes__leaving__IDLE_S=4.0,
    processes__leaving__LOOK_S=0.5,
    processes__leaving__ENDING_S=1.0,
)
"""The agent, soon tired of ranks whose scripts have ended."""
STUCK = "threading.Thread(target=queue.Queue().get, name='prefetch').start()\n"


def rig(folder: Path, script: str, **more: Any) -> Rig:
    return Rig(folder, **{"script": HEAD + script, "entry": QUICK, **more})


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit()\n", "raise SystemExit(0)\n"], ids=["falls off", "exit", "raises"])
def test_a_thread_that_waits_for_ever_keeps_no_rank_and_its_0_is_a_success(tmp_path: Path, end: str) -> None:
    with rig(tmp_path, STUCK + "trainjob.report({})\n" + end, agents=1) as it:
        it.run(1)
        named = "Python waits for its threads prefetch"
        it.wait(lambda: it.first(lambda report: named in (report["warning"] or "")), "said, and named")
        it.wait(it.completed, "completed")
        assert (it.rank(0)["kind"], it.rank(0)["exit_code"], it.rank(0)["signal"]) == (contract.END_OK, 0, None)
        it.wait(lambda: it.report(0)["warning"] is None and it.report(0)["quiet"], "nothing left")


@pytest.mark.slow
def test_a_clean_up_at_exit_that_hangs_keeps_no_rank(tmp_path: Path) -> None:
    with rig(tmp_path, "atexit.register(time.sleep, 600)\n", agents=1) as it:
        it.run(1)
        it.wait(it.completed, "completed")
        it.wait_text(0, "in a clean-up at exit")


BROKEN = pytest.mark.parametrize(
    "end, code", [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("raise KeyboardInterrupt", 130)]
)


def leaves_broken(end: str) -> str:
    """Rank 1, which a thread keeps; rank 0 waits for it."""
    return f"if c.rank == 1:\n    {STUCK}    {end}\ntrainjob.barrier()\n"


@pytest.mark.slow
@BROKEN
def test_nobody_waits_for_the_end_of_a_rank_that_leaves_broken(tmp_path: Path, end: str, code: int) -> None:
    with Rig(tmp_path, script=HEAD + leaves_broken(end), entry=entry(processes__leaving__ENDING_S=10_000.0)) as it:
        it.run(1)
        it.wait(lambda: it.ended(0), "the other is told at once")
        assert f"rank 1 ended its script with exit code {code}" in it.rank(0)["error"]["message"]
        said = it.wait(lambda: it.rank(1).get("error"), "rank 1's own word")
        assert said == {"type": "SystemExit", "message": str(code)}
        assert it.running(1)


@pytest.mark.slow
@BROKEN
def test_a_rank_that_leaves_broken_and_does_not_end_is_killed_and_its_code_is_its_own(
    tmp_path: Path, end: str, code: int
) -> None:
    with rig(tmp_path, leaves_broken(end)) as it:
        it.run(1)
        it.wait(lambda: it.ended(1), "killed")
        assert (it.rank(1)["kind"], it.rank(1)["exit_code"]) == (contract.END_EXIT, code)
        told = it.rank(1)["error"]
        assert (told is None) == (code == 130), "a signal's end is nobody's mistake"
        if told is not None:
            assert (told["type"], told["message"]) == ("SystemExit", "no" if code == 1 else "")
            assert end in told["traceback"] and told["traceback"].splitlines()[-1].startswith("SystemExit: ")


@pytest.mark.slow
def test_who_goes_on_training_in_a_thread_is_left_alone(tmp_path: Path) -> None:
    """Longer than the patience: it reports, it waits for the other, it computes; and then it is done."""
    script = (
        "def train():\n    for i in range(40):\n        time.sleep(0.1)\n        trainjob.report({'i': i})\n"
        "    until = time.monotonic() + 6\n    while c.rank == 1 and time.monotonic() < until:\n        pass\n"
        "    if c.rank == 0:\n        time.sleep(8)\n"
        "    trainjob.barrier()\n    print('trained', flush=True)\n"
        "if c.rank == 1:\n    threading.Thread(target=train).start()\nelse:\n    train()\n"
    )
    # On a busy machine it does not get the twentieth of a core that work takes.
    with rig(tmp_path, script, entry=(*QUICK, "trainjob.agent.processes.leaving.BUSY_SHARE=0.001")) as it:
        it.run(1)
        it.wait(it.completed, "completed")
        it.wait_text(1, "trained")
        assert "its process is killed" not in it.text(1)


@pytest.mark.slow
def test_a_forked_child_that_ends_says_nothing_for_its_parent(tmp_path: Path) -> None:
    script = "if os.fork() == 0:\n    sys.exit(7)\nos.wait()\ntrainjob.barrier()\n"
    with rig(tmp_path, script) as it:
        it.run(1)
        it.wait(it.completed, "completed")


@pytest.mark.slow
def test_behind_a_launcher_it_is_said_and_the_launcher_decides(tmp_path: Path) -> None:
    script = (
        "def upload():\n    while not os.path.exists('uploaded'):\n        time.sleep(0.02)\n"
        "threading.Thread(target=upload, name='upload').start()\n"
    )
    with rig(tmp_path, script, agents=1, command=["sh", "-c", f"{sys.executable} train.py; exit $?"]) as it:
        it.run(1)
        it.wait_text(0, "Python waits for its threads upload. What started it waits for it")
        (it.work / "uploaded").touch()
        it.wait(it.completed, "completed")


WIPED = """
import ctypes, subprocess, sys, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
ctypes.memset(int(fields[47]), 0, int(fields[48]) - int(fields[47]))
work = "import time; until = time.process_time() + 0.5\\nwhile time.process_time() < until: pass\\ninput()"
child = subprocess.Popen([sys.executable, "-c", work], env={}, stdin=subprocess.PIPE)
input()
"""


def test_work_counts_of_a_rank_that_wrote_over_its_environment_and_of_its_children() -> None:
    """As a program does that names itself, with setproctitle."""
    with subprocess.Popen([sys.executable, "-c", WIPED], stdin=subprocess.PIPE) as rank:
        # Less than the child's half a second: the kernel rounds each process's two times down to its ticks.
        wait_until(lambda: cpu_seconds(rank.pid, [b"TRAINJOB_RANK=0"]) >= 0.4)
        rank.communicate(b"\n")


def test_what_counts_as_work() -> None:
    idle = Idle(0.0, 5.0, 7)
    assert idle.idle_s(10.0, 5.0 + BUSY_SHARE * 9, 7, waits=False) == 10.0
    assert idle.idle_s(20.0, 5.0 + BUSY_SHARE * 9, 7, waits=True) == 0.0
    assert idle.idle_s(30.0, 5.0 + BUSY_SHARE * 9, 8, waits=False) == 0.0
    assert idle.idle_s(40.0, 5.0 + BUSY_SHARE * 20, 8, waits=False) == 0.0
    assert idle.idle_s(50.0, 1.0, 8, waits=False) == 10.0  # a child is gone, with its time
    assert idle.idle_s(60.0, 1.0, 8, waits=False) == 20.0
