"""Agents that no coordinator answers for long: each stays as long as its attempt needs it, and no longer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.agent_rig import ROOT, Rig
from support.storage_children import child_of
from trainjob.agent.attempts import awaited
from trainjob.agent.attempts.awaited import PARTED_S, Ends, parted
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.standstill import Standstill
from trainjob_api import contract

OK, EXIT = contract.END_OK, contract.END_EXIT
PATIENCE_S = 0.5
WAITS = """
import os, time, trainjob
rank = trainjob.get_context().rank
while not os.path.exists(f"go-{rank}"):
    time.sleep(0.02)
"""
SAVES = """
import os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, f"part-{c.rank}").write_text("1")
    while not os.path.exists(f"go-{c.rank}"):
        time.sleep(0.02)
    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=1)
"""


@pytest.mark.parametrize(
    ("ended", "gone", "lack"),
    [
        ([], set(), True),
        ([(0, 0, OK), (0, 1, OK)], set(), True),
        ([(0, 0, OK), (0, 1, OK), (1, 2, OK)], set(), True),
        ([(0, 0, OK), (0, 1, OK), (1, 2, OK), (1, 3, OK)], set(), False),
        ([(0, 0, OK), (0, 1, OK), (1, 2, OK)], {1}, False),
        ([(0, 0, OK), (0, 1, OK), (1, 2, EXIT)], set(), False),
        ([(7, 0, OK)], {0}, True),
    ],
    ids=["none", "own", "one of theirs", "all", "out of reach", "broken", "of nobody"],
)
def test_ranks_are_missing_as_long_as_the_run_may_be_complete_with_them(
    ended: list[tuple[int, int, str]], gone: set[int], lack: bool
) -> None:
    ends = Ends(2, 2)
    for end in ended:
        ends.ended(*end)
    assert ends.lack(gone) is lack


def test_who_could_not_be_reached_for_a_moment_is_waited_for() -> None:
    assert parted({1: 0.0, 2: 1.0}, PARTED_S) == {1}


@pytest.mark.parametrize(("stands_s", "awaits"), [(0.0, False), (1e9, True)])
def test_a_storage_that_refuses_for_good_keeps_no_pod(
    monkeypatch: pytest.MonkeyPatch, stands_s: float, awaits: bool
) -> None:
    """All that others had to store is stored, and what this agent writes moves no more."""
    monkeypatch.setattr(awaited, "STANDS_S", stands_s)
    leader: Any = SimpleNamespace(
        _links=SimpleNamespace(left=()),
        collectives=SimpleNamespace(needed=None),
        commits=SimpleNamespace(moved_at=7.0),
        _ends=SimpleNamespace(lack=lambda gone: False),
        _run_end=SimpleNamespace(is_at_work=lambda gone: True),
        _still=Standstill(),
    )

    async def asked() -> bool:
        return Leader.awaits(leader, set(), True)

    assert asyncio.run(asked()) is awaits


def alone(tmp_path: Path, script: str, **more: Any) -> Rig:
    """Two agents whose patience is short from the moment that `leave_alone` sets."""
    entry = [str(ROOT / "tests" / "support" / "quick_agent.py"), f"{PATIENCE_S}@{tmp_path / 'alone'}"]
    return Rig(tmp_path, script=script, storage=tmp_path / "store", entry=entry, **more)


def leave_alone(rig: Rig) -> None:
    rig.coordinator.stop()
    (rig.folder / "alone").touch()


def stays(rig: Rig, slot: int) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        rig.exit_code(slot, 4 * PATIENCE_S)


def go(rig: Rig, rank: int) -> None:
    (rig.work / f"go-{rank}").touch()


def train(rig: Rig) -> None:
    """Both do."""
    rig.run(1)
    rig.wait(lambda: rig.running(0, 1), "both train")


def half_stored(rig: Rig) -> int:
    """Rank 0's agent has stored its share of a checkpoint, worker 1 not: its storage child, which stands still."""
    train(rig)
    slow = child_of(rig, 1)
    os.kill(slow, signal.SIGSTOP)
    go(rig, 0)
    go(rig, 1)
    rig.wait(lambda: rig.ended(0, 1) and rig.report(0)["uploads"] == 0, "it has stored its share")
    return slow


def is_complete(rig: Rig) -> bool:
    return (rig.folder / "store" / "runs" / "1.end.json").exists()


@pytest.mark.parametrize("first", [0, 1])
def test_an_agent_whose_ranks_have_ended_stays_while_others_train(tmp_path: Path, first: int) -> None:
    """Without rank 0's agent nobody says that the run is complete; a worker that ended before that would count as lost,
    and end the attempt of those that train.
    """
    with alone(tmp_path, WAITS) as rig:
        train(rig)
        go(rig, first)
        rig.wait(lambda: rig.ended(first), "one has ended")
        leave_alone(rig)
        stays(rig, first)
        go(rig, 1 - first)
        assert [rig.exit_code(slot) for slot in (0, 1)] == [contract.EXIT_OK, contract.EXIT_OK]
        assert is_complete(rig)


def test_rank_0s_agent_stays_until_others_have_stored_and_commits(tmp_path: Path) -> None:
    with alone(tmp_path, SAVES) as rig:
        slow = half_stored(rig)
        leave_alone(rig)
        stays(rig, 0)
        os.kill(slow, signal.SIGCONT)
        assert [rig.exit_code(slot) for slot in (0, 1)] == [contract.EXIT_OK, contract.EXIT_OK]
        assert is_complete(rig) and (tmp_path / "store/checkpoints/1-1-1/.trainjob/manifest.json").exists()


def test_what_rank_0s_agent_did_not_live_to_commit_a_worker_commits_before_it_ends(tmp_path: Path) -> None:
    with alone(tmp_path, SAVES) as rig:
        slow = half_stored(rig)
        rig.coordinator.stop()
        rig.agents[0].process.kill()
        os.kill(slow, signal.SIGCONT)
        (tmp_path / "alone").touch()
        assert rig.exit_code(1) == contract.EXIT_NO_COORDINATOR and not is_complete(rig)
        assert (tmp_path / "store/checkpoints/1-1-1/.trainjob/manifest.json").exists()


@pytest.mark.parametrize("dead", [0, 1])
def test_nobody_waits_for_an_agent_that_is_gone(tmp_path: Path, dead: int) -> None:
    with alone(tmp_path, WAITS) as rig:
        train(rig)
        go(rig, 1 - dead)
        rig.wait(lambda: rig.ended(1 - dead), "one has ended")
        rig.agents[dead].process.kill()
        leave_alone(rig)
        assert rig.exit_code(1 - dead) == contract.EXIT_NO_COORDINATOR


def test_nobody_waits_in_an_attempt_that_has_broken(tmp_path: Path) -> None:
    script = WAITS + "assert rank == 0, 'broken'\n"
    with alone(tmp_path, script) as rig:
        train(rig)
        go(rig, 0)
        rig.wait(lambda: rig.ended(0), "one has ended")
        go(rig, 1)
        rig.wait(lambda: rig.ended(1), "the other one broke")
        leave_alone(rig)
        assert [rig.exit_code(slot) for slot in (0, 1)] == [contract.EXIT_NO_COORDINATOR] * 2
