"""The state of a rank (data positions, random numbers) travels with each checkpoint, and is taken for no other report."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.alarms import ALARMS
from support.tuned_agent import entry
from trainjob.session import state_format
from trainjob_api import contract

pytestmark = pytest.mark.slow

HEAD = """
import os, pathlib, signal, sys, tempfile, time, trainjob
from trainjob.session import rank_state
c = trainjob.get_context()
taken = []
def take():
    taken.append(1)
    return {"rank": c.rank, "times": len(taken)}
rank_state.register("place", take, lambda saved: None)
def save(step):
    with tempfile.TemporaryDirectory() as d:
        pathlib.Path(d, "model").write_bytes(b"model")
        trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(d) if c.rank == 0 else None, step=step)
"""


def state_of(rig: Rig, rank: int, id_: str = "1-1-4") -> object:
    file = rig.work_dir(rank) / "staging" / id_ / "files" / ".trainjob" / f"rank-{rank}.state"
    return state_format.loads(file.read_bytes())["states"]["place"]


def test_it_is_taken_when_a_checkpoint_is_saved_and_only_then(tmp_path: Path) -> None:
    script = HEAD + "for _ in range(3):\n    trainjob.report({})\nassert not taken\nsave(4)\nassert taken == [1]\n"
    with Rig(tmp_path, script=script + "time.sleep(600)\n") as rig:
        rig.run(1)
        rig.wait(lambda: all((rig.work_dir(r) / "staging/1-1-4/released.json").exists() for r in (0, 1)), "saved")
        assert [state_of(rig, rank) for rank in (0, 1)] == [{"rank": r, "times": 1} for r in (0, 1)]


@pytest.mark.parametrize(
    "fault, word",
    [
        ("raise ValueError('no place')", "The state of rank 1 cannot be taken: ValueError: no place"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Rank 1 ended before it gave its state"),
    ],
    ids=["raises", "killed"],
)
def test_one_that_cannot_be_taken_fails_the_report_for_all(tmp_path: Path, fault: str, word: str) -> None:
    script = HEAD.replace("    taken.append(1)\n", f"    if c.rank == 1:\n        {fault}\n    taken.append(1)\n")
    with Rig(tmp_path, script=script + "save(1)\n") as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert rig.rank(0)["kind"] == contract.END_EXCEPTION and word in rig.rank(0)["error"]["message"]


def test_a_rank_that_left_its_report_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    script = (ALARMS + HEAD) + (
        "if c.rank == 1:\n    alarm_in_a_call()\n    try:\n        save(1)\n"
        "    except Alarm:\n        open('left', 'w').close()\n        time.sleep(600)\n"
        "while not os.path.exists('left'):\n    time.sleep(0.01)\nsave(1)\n"
    )
    with Rig(tmp_path, script=script, entry=entry(attempts__steps__STATE_S=1.0)) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert "Rank 1 did not give its state within 1 s" in rig.rank(0)["error"]["message"]


def test_programs_one_after_the_other_give_theirs(tmp_path: Path) -> None:
    """Each counts its calls from 1, and is asked by that number."""
    script = HEAD + "trainjob.report({})\nsave(1)\nif sys.argv[1:]:\n    time.sleep(600)\n"
    script += "os.execv(sys.executable, [sys.executable, 'train.py', 'second'])\n"
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: (rig.work_dir(1) / "staging/1-1-4/released.json").exists(), "saved by the second")
        assert state_of(rig, 1) == {"rank": 1, "times": 1}
