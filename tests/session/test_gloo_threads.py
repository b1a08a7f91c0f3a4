"""Gloo's threads finish before what they work for goes away. Stand-ins: a folder for the kernel's, a package of its
name for torch; the last test has the real ones.
"""

from __future__ import annotations

import _thread
import os
import sys
import textwrap
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from support.ranks import Ended, boot, finish
from support.torch_release import without_gloo
from support.warm_ranks import run_warm
from trainjob.session import gloo_threads
from trainjob.session.gloo_threads import Look

LOOP = Path(__file__).with_name("loop_gloo.py")
GLOO = "pt_gloo_runloop"
C10D = """
class _world:
    pg_backend_config = {}
def destroy_process_group(group=None):
    "Destroy it."
    if group is not None:
        raise ValueError("Invalid process group specified")
    print("destroyed", flush=True)
"""
BUSY = """
import ctypes, threading, time
begun, may_end = threading.Event(), threading.Event()
def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")
    begun.set()
    while not may_end.is_set():
        pass
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    print("finished", flush=True)
    time.sleep(600)
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def run(folder: Path, script: str) -> Ended:
    for name, source in {
        "torch/__init__.py": "",
        "torch/distributed/__init__.py": "from .distributed_c10d import *",
        "torch/distributed/distributed_c10d.py": C10D,
        "train.py": textwrap.dedent(script),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    return finish([boot(["train.py"], {}, folder)])[0]


class Tasks:
    """A process's threads, which go on by one step in each sleep; the last step stays."""

    def __init__(
        self,
        folder: Path,
        steps: list[dict[int, tuple[str, str, int]]],
        calls: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`calls`: the system calls that threads wait in."""
        self.folder, self.slept = folder, 0
        self._steps, self._calls = steps, calls
        self._write()

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self._write()

    def _write(self) -> None:
        for task, (name, state, switches) in self._steps[min(self.slept, len(self._steps) - 1)].items():
            (self.folder / str(task)).mkdir(exist_ok=True)
            (self.folder / str(task) / "comm").write_text(f"{name}\n")
            counts = f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t3\n" if switches else ""
            (self.folder / str(task) / "status").write_text(f"Name:\t{name}\nState:\t{state} (word)\n{counts}")
            if task in self._calls:
                (self.folder / str(task) / "syscall").write_text(f"{self._calls[task]} 0x7f 0x0 0x1\n")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """As it is imported, with no group."""
    monkeypatch.setattr(gloo_threads, "_in_vain", False)
    monkeypatch.setattr(gloo_threads, "_LOCK", b"202")
    world = types.SimpleNamespace(pg_backend_config={})
    monkeypatch.setitem(sys.modules, gloo_threads.MODULE, types.SimpleNamespace(_world=world))  # type: ignore[misc]
    return world


def slept(tasks: Tasks) -> int:
    gloo_threads.settle(str(tasks.folder), tasks.sleep)
    return tasks.slept


def test_threads_are_idle_once_all_slept_from_one_look_to_the_next() -> None:
    asleep, woke, runs = Look(b"S", 5), Look(b"S", 6), Look(b"R", 5)
    assert not gloo_threads.idle(None, {"1": asleep})
    assert not gloo_threads.idle({"1": asleep}, {"1": woke})
    assert not gloo_threads.idle({"1": runs}, {"1": runs})
    assert not gloo_threads.idle({"1": asleep, "2": asleep}, {"1": asleep, "2": woke})
    assert not gloo_threads.idle({"1": asleep}, {"1": asleep, "2": asleep})
    assert gloo_threads.idle({"1": asleep, "2": woke}, {"1": asleep, "2": woke})


def test_it_looks_until_they_are_idle(tmp_path: Path, torch: types.SimpleNamespace) -> None:
    main, other = ("python", "R", 9), ("gloo_tcp_loop", "R", 9)
    steps = [("R", 5), ("S", 6), ("S", 7), ("R", 7), ("S", 7), ("S", 7)]
    threads = [{1: main, 2: other, 3: (GLOO, state, count), 4: (GLOO, "S", 4)} for state, count in steps]
    assert slept(Tasks(tmp_path, threads)) == len(steps) - 1


def test_ranks_without_gloo_do_not_sleep(tmp_path: Path, torch: types.SimpleNamespace) -> None:
    torch.pg_backend_config["group"] = "cuda:nccl"
    assert slept(Tasks(tmp_path, [{1: ("python", "R", 9), 2: ("pt_nccl_watchdg", "R", 9)}])) == 0


@pytest.mark.parametrize("shown", ["no names", "no counts", "nothing"])
def test_where_the_threads_do_not_show_a_few_short_sleeps_are_all(
    tmp_path: Path, torch: types.SimpleNamespace, shown: str
) -> None:
    torch.pg_backend_config["group"] = "cpu:gloo,cuda:nccl"
    tasks = Tasks(tmp_path, [{} if shown == "nothing" else {1: (GLOO if shown == "no counts" else "python", "R", 0)}])
    if shown == "nothing":
        tasks.folder = tmp_path / "no folder"
    assert slept(tasks) == 5


def test_without_names_it_looks_until_none_of_those_that_have_none_runs(
    tmp_path: Path, torch: types.SimpleNamespace
) -> None:
    """As before torch 2.11. One that gets the GIL now and then runs again; Python's own threads do as they like."""
    torch.pg_backend_config["group"] = "cpu:gloo,cuda:nccl"
    main, others = ("python", "R", 9), {2: ("cuda-EvtHandlr", "R", 9), 3: ("gloo_tcp_loop", "R", 9)}
    may_end = threading.Event()
    mine = threading.Thread(target=may_end.wait)
    mine.start()
    python: dict[int, tuple[str, str, int]] = {os.getpid(): main, mine.native_id or 0: main}
    states = "RRSSSSRSSSSSSS"
    steps = [{**python, **others, 4: ("python", state, 9)} for state in states]
    assert slept(Tasks(tmp_path, steps)) == states.rindex("R") + 1 + 5
    may_end.set()
    mine.join()


def test_without_names_it_looks_until_none_waits_for_a_lock_any_more(
    tmp_path: Path, torch: types.SimpleNamespace
) -> None:
    """One that waits for the GIL wakes to ask for it; one that waits at a socket wakes too, and is left alone."""
    torch.pg_backend_config["group"] = "gloo"
    waking = [*range(1, 8), *[8] * 9]
    steps = [{4: ("python", "S", switches), 5: ("python", "S", 2 * at + 1)} for at, switches in enumerate(waking)]
    for step in steps:
        step[os.getpid()] = ("python", "R", 9)
    assert slept(Tasks(tmp_path, steps, {4: 202, 5: 232})) == waking.index(8) + 5


def test_one_that_python_has_met_is_no_thread_of_pythons(tmp_path: Path, torch: types.SimpleNamespace) -> None:
    """It has met whoever called `threading.current_thread`, as each line of `logging` does."""
    torch.pg_backend_config["group"] = "gloo"
    known, may_end = threading.Event(), threading.Event()
    tasks: list[int] = []

    def meets() -> None:
        tasks.append(threading.current_thread().native_id or 0)
        known.set()
        may_end.wait()

    _thread.start_new_thread(meets, ())
    known.wait()
    states = "RRRRSSSSSSSS"
    steps = [{os.getpid(): ("python", "R", 9), tasks[0]: ("python", state, 9)} for state in states]
    assert slept(Tasks(tmp_path, steps)) == states.rindex("R") + 1 + 5
    may_end.set()


def test_the_child_of_a_fork_knows_itself(
    tmp_path: Path, torch: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.pg_backend_config["group"] = "gloo"
    monkeypatch.setattr(threading.main_thread(), "_native_id", 1)
    assert slept(Tasks(tmp_path, [{os.getpid(): ("python", "R", 9)}])) == 5


def test_one_without_a_name_that_always_runs_is_waited_for_once_and_not_for_ever(
    tmp_path: Path, torch: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.pg_backend_config["group"] = "gloo"
    monkeypatch.setattr(gloo_threads, "_LIMIT_S", 0.05)
    tasks = Tasks(tmp_path, [{os.getpid(): ("python", "R", 9), 4: ("python", "R", 9)}])
    before = slept(tasks)
    assert before > 5
    assert slept(tasks) - before == 5


def test_a_thread_that_is_at_work_is_waited_for(tmp_path: Path) -> None:
    ended = run(tmp_path, BUSY + "import torch.distributed as dist\nmay_end.set()\ndist.destroy_process_group()")
    assert (ended.code, ended.out) == (0, "finished\ndestroyed\n"), ended.err


def test_at_exit_too_after_what_the_program_does_there(tmp_path: Path) -> None:
    script = "import atexit, torch.distributed\natexit.register(lambda: (print('leaves', flush=True), may_end.set()))\n"
    ended = run(tmp_path, BUSY + script)
    assert (ended.code, ended.out) == (0, "leaves\nfinished\n"), ended.err


def test_the_function_looks_and_raises_as_before(tmp_path: Path) -> None:
    script = """
        import inspect, torch.distributed
        from torch.distributed import destroy_process_group
        from torch.distributed.distributed_c10d import destroy_process_group as own
        print(own is destroy_process_group is torch.distributed.destroy_process_group)
        print(own.__name__, own.__doc__, own.__module__, inspect.signature(own))
        destroy_process_group(group=1)
    """
    ended = run(tmp_path, script)
    assert ended.out.splitlines() == ["True", f"destroy_process_group Destroy it. {gloo_threads.MODULE} (group=None)"]
    assert ended.code == 1 and ended.err.endswith("ValueError: Invalid process group specified\n")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["destroy", "exit"])
@pytest.mark.parametrize("warm", [False, True])
def test_torchs_own_threads_are_waited_for(tmp_path: Path, when: str, warm: bool) -> None:
    """Without it the first never ends and the second ends by SIGABRT."""
    if warm:
        (rank,) = run_warm([str(LOOP), when], tmp_path, preload=["torch", "torch.distributed"]).ranks
        assert rank.warm and (rank.status, rank.out.splitlines()[-1:]) == (0, ["ends"]), rank.out
    else:
        (ended,) = finish([boot([str(LOOP), when], {}, tmp_path)])
        assert (ended.code, without_gloo(ended.out.splitlines())) == (0, ["ends"]), ended.err
