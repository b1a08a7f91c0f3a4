"""Shells that go on behind a script that broke: their end with 0 hides nothing, and what they try again counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.cut_proxy import CutProxy
from trainjob.agent.processes.rank import Rank
from trainjob_api import contract

HEAD = """
import os, signal, sys, trainjob
c = trainjob.get_context()
first = not os.path.exists(f'tried-{c.rank}')
open(f'tried-{c.rank}', 'w').close()
trainjob.barrier()
"""
RAISES = "raise ValueError('no luck')\n"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)\n"
GOES_ON = ["sh", "-c", f"{sys.executable} train.py; echo done"]


def at_rank_1(what: str) -> str:
    return HEAD + f"if c.rank == 1 and first:\n    {what}trainjob.barrier()\n"


def exited(rank: Rank, code: int = 0) -> Rank:
    rank.take_status(code << 8)
    rank.decide(plain=False)
    return rank


@pytest.mark.slow
def test_a_shell_that_goes_on_after_an_exception_is_no_success(tmp_path: Path) -> None:
    with Rig(tmp_path, script=at_rank_1(RAISES), command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        end = rig.rank(1)
        assert (end["kind"], end["exit_code"], end["error"]["message"]) == (contract.END_EXCEPTION, 0, "no luck")
        assert rig.rank(0)["kind"] == contract.END_EXCEPTION and rig.rank(0)["error"]["communication"]
        assert not rig.some_completed()


@pytest.mark.slow
def test_a_shell_that_goes_on_after_a_signal_is_no_success_for_those_who_waited(tmp_path: Path) -> None:
    with Rig(tmp_path, script=at_rank_1(KILLED), command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert rig.rank(1)["kind"] == contract.END_SIGNAL
        assert "but rank 0 waits for it in barrier()" in rig.rank(0)["error"]["message"]
        assert rig.rank(0)["kind"] == contract.END_EXCEPTION and rig.rank(0)["error"]["communication"]
        assert not rig.some_completed()


@pytest.mark.slow
@pytest.mark.parametrize(
    "end, code",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 0),
        ("signal.raise_signal(signal.SIGTERM)", 0),
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("exit(5)", 5),
        ("def main():\n        sys.exit('no')\n    main()", 1),
    ],
)
def test_a_shell_that_goes_on_after_an_end_that_nobody_waited_for_is_no_success(
    tmp_path: Path, end: str, code: int
) -> None:
    with Rig(tmp_path, script=HEAD + f"if c.rank == 1:\n    {end}\n", command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert rig.rank(0)["kind"] == contract.END_OK
        assert (rig.rank(1)["kind"], rig.rank(1)["exit_code"]) == (
            contract.END_EXIT if code else contract.END_SIGNAL,
            code,
        )
        assert code or "is gone without a farewell" in rig.rank(1)["error"]["message"]
        assert not rig.some_completed()


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "sys.exit(0)",
        "os.execvp('true', ['true'])",
        "os.closerange(3, 100)",
        "try:\n    sys.exit(2)\nexcept SystemExit as error:\n    assert error.code == 2",
        # No success of its own, but Python tells nobody of it: docs/failures.md and docs/debugging.md say so.
        "raise SystemExit(3)",
    ],
    ids=["hard exit", "exit", "becomes another", "closes all", "caught", "bare"],
)
def test_ends_of_its_own_behind_a_shell_are_a_success(tmp_path: Path, end: str) -> None:
    with Rig(tmp_path, script=HEAD + f"{end}\n", agents=1, command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        assert rig.rank(0)["kind"] == contract.END_OK


@pytest.mark.slow
def test_what_became_another_program_is_no_loss_however_late_the_agent_looks(tmp_path: Path) -> None:
    script = HEAD + (
        "agent = open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]\n"
        "os.kill(int(agent), signal.SIGSTOP)\n"
        "os.system(f'(sleep 1; kill -CONT {agent}) &')\n"
        "os.execvp('true', ['true'])\n"
    )
    with Rig(tmp_path, script=script, agents=1, command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")


@pytest.mark.slow
def test_one_that_did_not_become_another_and_was_killed_is_lost(tmp_path: Path) -> None:
    tries = "try:\n    os.execvp('/nowhere/to be found', ['x'])\nexcept OSError:\n    trainjob.get_checkpoint()\n"
    with Rig(tmp_path, script=at_rank_1(tries.replace("\n", "\n    ") + KILLED), command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert "gone without a farewell" in rig.rank(1)["error"]["message"]


@pytest.mark.slow
def test_a_child_that_spoke_as_its_parent_and_was_killed_is_not_the_rank(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, trainjob\n"
        "if sys.argv[1:]:\n    trainjob.get_context()\n    print('here', flush=True)\n    sys.stdin.read()\n"
        "trainjob.get_context()\n"
        "child = subprocess.Popen([sys.executable, 'train.py', 'child'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nchild.kill()\nchild.wait()\ntrainjob.get_checkpoint()\n"
    )
    with Rig(tmp_path, script=script, agents=1, command=GOES_ON) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_who_left_too_early_is_named_although_the_other_made_nothing_of_it(tmp_path: Path, gone: int) -> None:
    script = HEAD + (
        f"if c.rank == {gone}:\n    sys.exit(0)\n"
        "try:\n    trainjob.barrier()\nexcept trainjob.RankGoneError:\n    print('so be it', flush=True)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        rig.wait(lambda: rig.rank(gone)["kind"] == contract.END_EARLY, "it was needed")
        assert f"rank {gone} ended with exit code 0, but rank {1 - gone} waits" in rig.rank(gone)["error"]["message"]
        assert rig.rank(1 - gone)["kind"] == contract.END_OK
        assert not rig.some_completed()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [RAISES, KILLED], ids=["raises", "killed"])
def test_a_shell_that_tries_again_until_it_works_completes(tmp_path: Path, fault: str) -> None:
    script = HEAD + f"if first:\n    {fault}trainjob.barrier()\n"
    command = ["sh", "-c", f"until {sys.executable} train.py; do echo again; done"]
    with Rig(tmp_path, script=script, command=command) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(lambda: {rank.get("kind") for rank in rig.ranks().values()} == {contract.END_OK}, "both are told")
        assert all(rank["error"] is None for rank in rig.ranks().values())


@pytest.mark.slow
def test_a_script_that_the_shell_runs_after_a_broken_one_decides(tmp_path: Path) -> None:
    script = HEAD + "if sys.argv[1:] == ['broken']:\n    raise ValueError('no luck')\n"
    command = ["sh", "-c", f"{sys.executable} train.py broken; {sys.executable} train.py; echo done"]
    with Rig(tmp_path, script=script, command=command) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")


@pytest.mark.slow
def test_another_rank_below_the_launcher_does_not_take_back_an_exception(tmp_path: Path) -> None:
    script = "import trainjob\nc = trainjob.get_context()\nprint(trainjob.get_checkpoint())\n" + (
        "if c.rank == 0:\n    raise ValueError('no luck')\n"
    )
    command = ["sh", "-c", f"RANK=0 {sys.executable} train.py; RANK=1 {sys.executable} train.py; echo done"]
    with Rig(tmp_path, script=script, agents=1, processes=2, command=command) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert (rig.rank(0)["kind"], rig.rank(0)["error"]["message"]) == (contract.END_EXCEPTION, "no luck")


def test_who_was_needed_before_its_end_was_known_is_no_success_either() -> None:
    rank = Rank(3, 0)
    rank.accuse(3, contract.END_EXCEPTION, {"type": "ValueError", "message": "no luck"})
    rank.miss({"type": "RankEndedEarly", "message": "rank 2 waits"})
    rank.greet(3, is_new=True)
    assert exited(rank).report()["kind"] == contract.END_EARLY


def test_a_new_connection_of_the_same_program_takes_nothing_back() -> None:
    rank = Rank(0, 0)
    rank.accuse(0, contract.END_EXCEPTION, {"type": "ValueError", "message": "no luck"})
    rank.greet(0, is_new=False)
    assert exited(rank).report()["kind"] == contract.END_EXCEPTION


def test_an_exit_code_of_its_own_says_more_than_that_others_waited() -> None:
    rank = Rank(0, 0)
    rank.miss({"type": "RankEndedEarly", "message": "rank 2 waits"})
    assert exited(rank, 3).report()["kind"] == contract.END_EXIT


@pytest.mark.slow
def test_that_a_rank_was_needed_is_told_again_over_a_new_connection(tmp_path: Path) -> None:
    script = HEAD + (
        "import time\nif c.rank == 1:\n    sys.exit(0)\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "try:\n    trainjob.barrier()\nexcept trainjob.RankGoneError:\n    pass\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 2)
        proxy = CutProxy(rig.coordinator.reports[0]["address"])
        try:
            rig.run_one(0, 1, 0, [0, 1])
            rig.run_one(1, 1, 1, [0, 1], leader=proxy.address)
            rig.wait(lambda: rig.ended(1), "rank 1 has returned")
            proxy.hush()  # rank 0's agent hears that rank 1 has ended, and cannot say that it was needed
            (rig.work / "go").touch()
            rig.wait(lambda: rig.ended(0), "rank 0 was refused its call")
        finally:
            proxy.close()
        assert rig.rank(1)["kind"] == contract.END_OK
        rig.run_one(1, 1, 1, [0, 1])
        rig.wait(lambda: rig.rank(1)["kind"] == contract.END_EARLY, "told again")


def test_what_a_rank_raises_while_it_is_ended_does_not_take_the_reasons_place() -> None:
    rank = Rank(0, 0)
    rank.verdict = contract.END_NOT_SHARED
    rank.error = {"type": "StorageNotShared", "message": "not the same folder"}
    rank.accuse(0, contract.END_EXCEPTION, {"type": "RankGoneError", "message": "rank 1 ended"})
    rank.take_status(9)
    rank.decide(plain=True)
    report = rank.report()
    assert report["kind"] == contract.END_NOT_SHARED and report["error"] == rank.error
    assert rank.error["type"] == "StorageNotShared"
