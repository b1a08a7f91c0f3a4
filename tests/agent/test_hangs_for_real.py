"""Ranks that hang, with agents and ranks as processes: each kind is told, with the rank to look at, and is taken back
when it goes on.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.patience import HANG_S
from support.tuned_agent import entry

pytestmark = pytest.mark.slow

QUICK = entry(hangs__watch__EVERY_S=0.1, hangs__stopped__EVERY_S=0.1, hangs__stopped__AFTER_S=0.5)
STEPS = """
import os, threading, time, trainjob
context = trainjob.get_context()
for step in range(3):
    trainjob.report({"step": step})
"""
END = """
trainjob.report({})
print("went on", flush=True)
"""
LOADS = """
def load_batch():
    print("stands there", flush=True)
    while not os.path.exists("go"):
        pass
if context.rank == 1:
    load_batch()
"""
LOCKED = """
lock = threading.Lock()
def let_go():
    while not os.path.exists("go"):
        time.sleep(0.02)
    lock.release()
def take_it_twice():
    lock.acquire()
    print("stands there", flush=True)
    lock.acquire()
if context.rank == 1:
    threading.Thread(target=let_go).start()
    take_it_twice()
"""
TORCH = "import torch, torch.distributed as dist, trainjob\ntrainjob.init_process_group()\n"
SKIPPED = """
def average():
    dist.all_reduce(torch.ones(1))
if context.rank == 0:
    average()
"""


OTHER_GROUP = """
pair = dist.new_group([0, 1])
dist.broadcast(torch.ones(2), 0)
dist.all_reduce(torch.ones(1), group=pair if context.rank == 1 else None)
"""
EARLY = entry(
    hangs__watch__EVERY_S=0.1,
    hangs__silence__EARLY_S=1.5,
    hangs__silence__UNPACED_S=3.0,
    hangs__silence__LATE_S=0.8,
    hangs__early__APART_S=0.8,
    hangs__evidence__QUIET_S=0.4,
)
PACE = STEPS.replace("range(3)", "range(8)")
BLOCKED = """
def load_batch():
    return open("pipe", "rb").read(1)
if context.rank == 1:
    load_batch()
"""
LOCKED_FOR_LONG = """
def take_it_twice():
    lock = threading.Lock()
    threading.Thread(target=lambda: (open("pipe", "rb").read(1), lock.release())).start()
    lock.acquire()
    lock.acquire()
if context.rank == 1:
    take_it_twice()
"""
LOADS_FOR_A_WHILE = """
def load_batch():
    until = time.process_time() + 3
    while time.process_time() < until:
        pass
if context.rank == 1:
    load_batch()
"""
PICKLES = """
import pickle
class Slow:
    def __reduce__(self):
        return Slow, (sum(range(10**8)),)
if context.rank == 1:
    pickle.dumps([Slow(), Slow()])
"""
SLOW_DISK = """
pieces = open("pieces", "w+b")
if context.rank == 1:
    for piece in range(150):
        pieces.write(bytes(1000))
        pieces.flush()
        time.sleep(0.02)
"""
SLOW_LOADER = """
import multiprocessing
def produce(queue):
    sum(range(10**8))
    queue.put(1)
if context.rank == 1:
    made = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=produce, args=(made,))
    child.start()
    made.get()
"""


def hangs_after(rig: Rig, seconds: float) -> None:
    """As an edit of spec.hang reaches rank 0's agent while the attempt runs."""
    rig.coordinator.tell(0, **{**rig.coordinator.instructions[0], "hang_after_s": seconds})


def hang(rig: Rig, slot: int = 0, *words: str) -> dict[str, Any]:
    """The verdict, once it has these words: a rank that is late on a busy machine, or whose record of its calls is, may
    be told of before.
    """

    def told() -> Any:
        found = rig.report(slot).get("hang")
        return found if found and all(each in found["message"] for each in words) else None

    found: dict[str, Any] = rig.wait(told, f"a verdict with {words}")
    return found


@pytest.mark.parametrize(("fault", "where"), [(LOADS, "load_batch"), (LOCKED, "take_it_twice")])
def test_the_rank_that_keeps_the_others_is_named_until_it_goes_on(tmp_path: Path, fault: str, where: str) -> None:
    with Rig(tmp_path, script=STEPS + fault + END, entry=QUICK) as rig:
        rig.run(1)
        rig.wait_text(1, "stands there")
        hangs_after(rig, 0.7)
        told = hang(rig, 0, "rank 0 waits in report (train.py:", f" {where}")
        assert told["ranks"] == [1], told
        assert told["message"].startswith("rank 0 waits in report (train.py:"), told
        assert f" {where}" in told["message"] and "; rank 1 (here) is in" in told["message"], told
        assert "rank 0: waits in report (" in told["stacks"], told
        assert re.search(rf"    train.py:\d+ {where}\n", told["stacks"]), told
        (rig.work / "go").touch()
        rig.wait(lambda: rig.report(0).get("hang") is None, "taken back")
        rig.wait(rig.completed, "completed")


def _message(rig: Rig) -> str:
    return str((rig.report(0).get("hang") or {}).get("message", ""))


def test_ranks_that_call_different_collectives_wait_for_each_other(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TORCH + STEPS + SKIPPED + END, entry=QUICK) as rig:
        rig.run(1)
        hangs_after(rig, 0.7)
        told = rig.wait(lambda: _message(rig) if "each other" in _message(rig) else "", "both wait")
        assert "rank 0 waits in all_reduce (train.py:" in told and "rank 1 waits in report (train.py:" in told, told


def test_a_stopped_rank_is_told_by_its_own_agent_and_no_longer_when_it_goes_on(tmp_path: Path) -> None:
    script = STEPS + 'while not os.path.exists("go"):\n    time.sleep(0.02)\n' + END
    with Rig(tmp_path, script=script, entry=QUICK) as rig:
        rig.run(1)
        pid = rig.wait(lambda: rig.running(1) and rig.ranks()[1]["pid"], "it runs")
        os.kill(pid, signal.SIGSTOP)
        try:
            told = hang(rig, 1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert told["ranks"] == [1] and "rank 1 (here): its process is stopped" in told["message"], told
        rig.wait(lambda: rig.report(1).get("hang") is None, "it goes on")
        (rig.work / "go").touch()
        rig.wait(rig.completed, "completed")


def test_a_stopped_program_behind_a_shell_that_is_killed_keeps_nobody_any_more(tmp_path: Path) -> None:
    """Nobody speaks as the rank until the shell goes on."""
    script = (
        "import os, sys, time, trainjob\ntrainjob.barrier()\nprint(sys.argv[1], os.getpid(), flush=True)\n"
        'while not os.path.exists("go"):\n    time.sleep(0.02)\n'
    )
    waits = "while [ ! -e second ]; do sleep 0.02; done"
    command = ["sh", "-c", f"{sys.executable} train.py first; {waits}; {sys.executable} train.py again"]
    with Rig(tmp_path, script=script, agents=1, command=command, entry=QUICK) as rig:
        rig.run(1)
        found = rig.wait(lambda: re.search(r"first (\d+)\n", rig.text(0)), "it runs")
        first = int(found[1])
        os.kill(first, signal.SIGSTOP)
        try:
            assert hang(rig)["ranks"] == [0]
        finally:
            os.kill(first, signal.SIGKILL)
        rig.wait(lambda: rig.report(0).get("hang") is None, "taken back")
        (rig.work / "second").touch()
        rig.wait_text(0, "again ")
        (rig.work / "go").touch()
        rig.wait(lambda: rig.ended(0), "ended")


def test_a_call_that_holds_the_interpreters_lock_is_no_hang(tmp_path: Path) -> None:
    """It works: the process is stopped by nobody, and its time is not over."""
    script = STEPS + 'print("holds", flush=True)\nsum(range(10**8))\nprint("held", flush=True)\n' + END
    with Rig(tmp_path, script=script, entry=QUICK) as rig:
        rig.run(1)
        hangs_after(rig, HANG_S)
        rig.wait(rig.completed, "completed")
        assert [each["hang"] for each in rig.coordinator.log if each["hang"]] == []
        for slot in (0, 1):
            rig.wait_text(slot, "held")
        assert all("is stopped" not in rig.text(slot) for slot in (0, 1))
        assert rig.text(0).count("held") == rig.text(1).count("held") == 1


@pytest.mark.parametrize(("fault", "where"), [(BLOCKED, "load_batch"), (LOCKED_FOR_LONG, "take_it_twice")])
def test_a_rank_that_can_only_wait_is_named_long_before_the_limit(tmp_path: Path, fault: str, where: str) -> None:
    with Rig(tmp_path, script=PACE + fault + END, entry=EARLY) as rig:
        os.mkfifo(rig.work / "pipe")
        rig.run(1)
        told = hang(rig, 0, f" {where}")
        assert told["ranks"] == [1] and told["early"], told
        (rig.work / "pipe").write_bytes(b"1")
        rig.wait(lambda: rig.report(0).get("hang") is None, "taken back")
        rig.wait(rig.completed, "completed")


def test_a_collective_that_one_rank_leaves_out_is_named_long_before_the_limit(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TORCH + PACE + SKIPPED + END, entry=EARLY) as rig:
        rig.run(1)
        told = hang(rig, 0, "wait for each other")
        assert told["early"], told
        assert "rank 0 waits in all_reduce (train.py:" in told["message"], told
        assert "rank 1 waits in report (train.py:" in told["message"], told


def test_a_collective_that_one_rank_leaves_out_before_the_first_step_is_named_too(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TORCH + "context = trainjob.get_context()\n" + SKIPPED + END, entry=EARLY) as rig:
        rig.run(1)
        parted = "rank 1 has called no collective of the default group"
        told = hang(rig, 0, "rank 0 waits in all_reduce (train.py:", parted)
        assert told["early"] and told["ranks"] == [1], told


def test_where_all_stand_in_the_same_line_torchs_record_says_where_they_part(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TORCH + PACE + OTHER_GROUP + END, entry=EARLY) as rig:
        rig.run(1)
        parted = "rank 1 has called 1 collective of the default group, rank 0 2 (the last: all_reduce [1] float)."
        told = hang(rig, 0, "all 2 ranks wait in all_reduce (train.py:", parted)
        assert told["early"] and told["ranks"] == [], "each waits, in another group"
        assert told["message"].endswith(parted), told


@pytest.mark.parametrize("work", [LOADS_FOR_A_WHILE, PICKLES, SLOW_DISK, SLOW_LOADER])
def test_a_rank_that_works_for_as_long_is_not(tmp_path: Path, work: str) -> None:
    with Rig(tmp_path, script=PACE + work + END, entry=EARLY) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        assert [each["hang"] for each in rig.coordinator.log if each["hang"]] == []


def test_an_agent_that_was_stopped_does_not_take_that_time_for_silence(tmp_path: Path) -> None:
    works = 'print("works", flush=True)\nwhile context.rank == 1 and not os.path.exists("stopped"):\n    pass\n'
    with Rig(tmp_path, script=PACE + works + BLOCKED + END, entry=EARLY) as rig:
        os.mkfifo(rig.work / "pipe")
        rig.run(1)
        rig.wait_text(1, "works")
        agent = rig.agents[0].process.pid
        os.kill(agent, signal.SIGSTOP)
        (rig.work / "stopped").touch()  # from here on it only waits
        time.sleep(4)
        (rig.work / "pipe").write_bytes(b"1")
        os.kill(agent, signal.SIGCONT)
        rig.wait(rig.completed, "completed")
        assert [each["hang"] for each in rig.coordinator.log if each["hang"]] == []


def test_nobody_looks_where_nobody_wants_to_know(tmp_path: Path) -> None:
    with Rig(tmp_path, script=STEPS + LOADS + END, entry=QUICK) as rig:
        rig.run(1)
        hangs_after(rig, 0.7)
        hang(rig)
        hangs_after(rig, 0)
        rig.wait(lambda: rig.report(0).get("hang") is None, "taken back")
        (rig.work / "go").touch()
        rig.wait(rig.completed, "completed")
