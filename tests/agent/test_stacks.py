"""A slow rank is asked where it stands, and goes on: whatever stands between the agent and the rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.agent_rig import Rig
from trainjob.agent.processes.stacks import ALONE
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = """
import os, time, trainjob
c = trainjob.get_context()
def still_evaluating():
    while not os.path.exists("go on"):
        time.sleep(0.02)
if c.rank == SLOW:
    still_evaluating()
trainjob.barrier()
print("went on", flush=True)
"""
WARN = {contract.ENV_BARRIER_WARN_S: "0.3"}
LAUNCHER = """
for local in 0 1; do
    RANK=$((NODE_RANK * 2 + local)) LOCAL_RANK=$local LOCAL_WORLD_SIZE=2 WORLD_SIZE=$((PET_NNODES * 2)) {python} train.py &
    pids="$pids $!"
done
for pid in $pids; do wait $pid || exit 1; done
"""
"""What torchrun does with the names that it is given."""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_behind_a_shell_gives_its_stack_and_lives(tmp_path: Path, shell: str, slow: int) -> None:
    command = [shell, "-c", f"true; {sys.executable} train.py; code=$?; true; exit $code"]
    with Rig(tmp_path, script=SCRIPT.replace("SLOW", str(slow)), command=command, env=WARN) as rig:
        rig.run(1)
        rig.wait_text(1 - slow, "in still_evaluating")
        (rig.work / "go on").touch()
        rig.wait(rig.completed, "completed")
        rig.wait_text(slow, "went on")


@pytest.mark.parametrize("slow", [1, 2])
def test_of_a_launchers_ranks_the_slow_one_gives_its_stack_and_all_live(tmp_path: Path, slow: int) -> None:
    command = ["bash", "launch.sh"]
    with Rig(tmp_path, script=SCRIPT.replace("SLOW", str(slow)), command=command, processes=2, env=WARN) as rig:
        (rig.work / "launch.sh").write_text(LAUNCHER.replace("{python}", sys.executable))
        rig.run(1)
        rig.wait_text(0, f"for rank {slow}:")
        rig.wait_text(0, "in still_evaluating")
        (rig.work / "go on").touch()
        rig.wait(rig.completed, "completed")


def test_a_program_that_took_the_ranks_place_is_left_in_peace(tmp_path: Path) -> None:
    script = SCRIPT.replace("SLOW", "-1") + (
        "if c.rank == 1:\n    os.execvp('sh', ['sh', '-c', 'while ! test -e \"go on\"; do sleep 0.05; done'])\n"
        "try:\n    trainjob.barrier()\nexcept trainjob.CollectiveError as e:\n    print('told:', e, flush=True)\n"
    )
    with Rig(tmp_path, script=script, env=WARN) as rig:
        rig.run(1)
        rig.wait(lambda: rig.text(0).count("gives no stack") + rig.text(0).count("has left it") >= 2, "asked twice")
        (rig.work / "go on").touch()
        rig.wait_text(0, "told: rank 1 ended with exit code 0")
        rig.wait(lambda: rig.ended(1), "ended")
        assert rig.rank(1)["exit_code"] == 0


def test_a_rank_whose_program_closes_all_descriptors_gives_its_stack_after_its_next_call(tmp_path: Path) -> None:
    closes = "os.closerange(3, 256)\nkept = [open(f'taken-{c.rank}', 'a') for _ in range(20)]\ntrainjob.barrier()\n"
    script = SCRIPT.replace("SLOW", "1").replace("def still", f"trainjob.barrier()\n{closes}def still")
    with Rig(tmp_path, script=script, env=WARN) as rig:
        rig.run(1)
        rig.wait_text(0, "in still_evaluating")
        (rig.work / "go on").touch()
        rig.wait(rig.completed, "completed")
        assert (rig.work / "taken-1").read_text() == ""


TAKES_THE_HANDLER_AWAY = "import signal\nsignal.signal(signal.SIGUSR2, signal.SIG_DFL)\n"


def test_a_rank_that_took_the_handler_away_answers_by_itself(tmp_path: Path) -> None:
    script = SCRIPT.replace("SLOW", "1").replace("if c.rank", f"{TAKES_THE_HANDLER_AWAY}if c.rank")
    with Rig(tmp_path, script=script, env=WARN) as rig:
        rig.run(1)
        rig.wait_text(0, "in still_evaluating")
        (rig.work / "go on").touch()
        rig.wait(rig.completed, "completed")


HOLDS_THE_LOCK = """
import ctypes
def holds_the_lock():
    ctypes.PyDLL(None).read(os.open("pipe", os.O_RDWR), ctypes.create_string_buffer(1), 1)
if c.rank == 1:
    holds_the_lock()
"""


@pytest.mark.parametrize(
    ("before", "said"), [("", ALONE), (TAKES_THE_HANDLER_AWAY, "does not handle SIGUSR2")], ids=["handles it", "not"]
)
def test_a_rank_that_cannot_answer_is_sent_the_signal_if_it_handles_it(tmp_path: Path, before: str, said: str) -> None:
    script = SCRIPT.replace("SLOW", "-1").replace("if c.rank", f"{before}{HOLDS_THE_LOCK}if c.rank", 1)
    with Rig(tmp_path, script=script, env=WARN) as rig:
        os.mkfifo(rig.work / "pipe")
        rig.run(1)
        shown = "in holds_the_lock"
        # The first one may be of a rank that has not come so far.
        rig.wait(lambda: said in rig.text(0) and (said != ALONE or shown in rig.text(0)), said)
        assert (shown in rig.text(0)) == (said == ALONE)
        (rig.work / "pipe").write_bytes(b"1")
        rig.wait(rig.completed, "completed")
