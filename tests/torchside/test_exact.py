"""A run that resumes gives the losses of one that was never stopped, bit for bit; and what would happen without our part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.fake_agent import FakeAgent
from support.fork_ranks import run_forked

pytestmark = pytest.mark.xdist_group("exact")  # what its tests share is made once

LOOP = Path(__file__).with_name("loop_exact.py")


def _steps(folder: Path, world_size: int, mode: str, workers: int = 0, resume_from: Path | None = None) -> dict[int, str]:
    """Run the loop; the bits of each step."""
    folder.mkdir()
    with FakeAgent(folder / "job", world_size, attempt=1 if resume_from is None else 2, resume_from=resume_from) as agent:
        extra = {"STORE": str(folder / "store"), "MODE": mode, "WORKERS": str(workers)}
        ended = run_forked([{**agent.environ(rank), **extra} for rank in range(world_size)], LOOP, folder)
    assert ended.code == 0, ended.err
    lines = [line.split(" ", 2) for line in ended.out.splitlines() if line.startswith("step ")]
    return {int(step): bits for _, step, bits in lines}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, dict[int, str]]]:
    """`whole(world_size)`: an uninterrupted run's folder and steps, made once."""

    @cache
    def run(world_size: int) -> tuple[Path, dict[int, str]]:
        folder = tmp_path_factory.mktemp("whole") / str(world_size)
        # Loaded by worker processes at 3 ranks; the resumed runs never are, which must not matter.
        return folder, _steps(folder, world_size, "ours", workers=2 if world_size == 3 else 0)

    return run


# 96 samples in batches of 4: 12, 8, 6 batches per rank and epoch at 2, 3, 4 ranks; reports 1, 2, ... every 3 steps and after each epoch.
@pytest.mark.parametrize(
    ("world_size", "report"),
    [
        (2, 2),  # inside the first epoch
        (3, 5),  # inside the second epoch
        (3, 3),  # after the first epoch
        (4, 2),  # behind the last batch of the first epoch, inside its loop
    ],
)
def test_a_resumed_run_is_bit_identical(tmp_path: Path, whole: Callable[[int], tuple[Path, dict[int, str]]], world_size: int, report: int) -> None:
    folder, steps = whole(world_size)
    resumed = _steps(tmp_path / "resumed", world_size, "ours", 0, folder / "job" / "checkpoints" / f"1-1-{report}")
    first = min(resumed)
    assert len(steps) == max(steps) == 2 * 96 // 4 // world_size
    assert 1 < first < max(steps) - 2
    assert resumed == {step: bits for step, bits in steps.items() if step >= first}


def test_without_fixed_buckets_three_ranks_differ(tmp_path: Path) -> None:
    whole = _steps(tmp_path / "whole", 3, "plain")
    resumed = _steps(tmp_path / "resumed", 3, "plain", 0, tmp_path / "whole" / "job" / "checkpoints" / "1-1-2")
    differing = [step for step in resumed if resumed[step] != whole[step]]
    assert differing, "DDP itself resumes bit-identically: what `buckets` does is no longer needed"
