"""Ranks that keep the others waiting, with agents, ranks and a process group as processes: each kind is told by rank 0's
agent, with its rank and what it does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.tuned_agent import entry

pytestmark = pytest.mark.slow

QUICK = entry(hangs__stopped__EVERY_S=0.05, pace__telling__TOGETHER_S=0.05)
LOOP = """
import os, time, torch, torch.distributed as dist, trainjob
from trainjob.session import pace
pace.WINDOW_S = 1.0
trainjob.init_process_group()
rank = trainjob.get_context().get_world_rank()
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, at):
        LOAD
        return torch.ones(1)
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
loader = trainjob.prepare_data_loader(torch.utils.data.DataLoader(Data(), batch_size=1))
while not os.path.exists("enough"):
    for batch in loader:
        COMPUTE
        go_on = torch.tensor([float(not os.path.exists("enough"))])
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
        if not go_on.item():
            break
trainjob.barrier()
"""


def loop(load: str = "pass", compute: str = "burn(0.005)") -> str:
    return LOOP.replace("LOAD", load).replace("COMPUTE", compute)


def told(rig: Rig, *words: str) -> dict[str, Any]:
    """The verdict of rank 1 with one of these words. One of rank 0 may come first, which others keep off the processor."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] | None = rig.report(0).get("stragglers")
        if found is None or [each["rank"] for each in found["ranks"]] != [1]:
            return None
        return found if any(each in found["message"] for each in words) else None

    found: dict[str, Any] = rig.wait(look, f"a verdict of rank 1 with {words}")
    return found


def ends(rig: Rig) -> None:
    (rig.work / "enough").touch()
    rig.wait(rig.completed, "completed")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # Much, where this machine has no processor to spare for either of the two.
        pytest.param(loop(load="time.sleep(0.2 * (rank == 1))"), ("its data loader",), id="data"),
        # On such a machine whoever computes waits for a processor, and that is what is told.
        pytest.param(
            loop(compute="burn(0.03 if rank == 1 else 0.003)"), ("computing", "a free processor"), id="compute"
        ),
    ],
)
def test_a_slow_rank_is_told(tmp_path: Path, script: str, words: tuple[str, ...]) -> None:
    with Rig(tmp_path, script=script, entry=QUICK) as rig:
        rig.run(1)
        said = told(rig, *(f"{each}. Its time" for each in words))
        assert "Rank 1 (here)" in said["message"], said
        ends(rig)


def flicker(pid: Callable[[], int | None], over: threading.Event) -> None:
    """Stopped for two thirds of the time."""
    while not over.wait(0.1):
        found = pid()
        if found is not None:
            os.kill(found, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(found, signal.SIGCONT)


def test_a_rank_that_is_stopped_again_and_again_is_told(tmp_path: Path) -> None:
    with Rig(tmp_path, script=loop(), entry=QUICK) as rig:
        rig.run(1)
        over = threading.Event()

        def pid() -> int | None:
            ranks = rig.report(1).get("ranks") or [{}]
            found: int | None = ranks[0].get("pid")
            return found

        rig.wait(pid, "rank 1")
        stopper = threading.Thread(target=flicker, args=(pid, over))
        stopper.start()
        try:
            told(rig, "being stopped")
        finally:
            over.set()
            stopper.join()
        ends(rig)
