"""A run that resumes gives the losses of one that was never stopped, bit for bit; and what would happen without our
part.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from support.fake_agent import FakeAgent
from support.fork_ranks import run_stages

pytestmark = pytest.mark.xdist_group("exact")  # what its tests share is made once

LOOP = Path(__file__).with_name("loop_exact.py")


class Run(NamedTuple):
    """One run of the loop: of how many ranks, from the start or from that report of the uninterrupted run, with our
    part or without.
    """

    ranks: int
    report: int = 0
    mode: str = "ours"

    @property
    def whole(self) -> Run:
        return self._replace(report=0)


# 96 samples in batches of 4: 12, 8, 6 batches per rank and epoch at 2, 3, 4 ranks; reports 1, 2, ... every 3 steps and
# after each epoch.
RESUMED = [
    Run(2, 2),  # inside the first epoch
    Run(3, 5),  # inside the second epoch
    Run(3, 3),  # after the first epoch
    Run(4, 2),  # behind the last batch of the first epoch, inside its loop
]
PLAIN = Run(3, 2, "plain")
WHOLE = {run.whole: None for run in [*RESUMED, PLAIN]}

Steps = dict[Run, dict[int, str]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """The bits of each step of each run. One process imports torch and forks the ranks of all."""
    here = tmp_path_factory.mktemp("exact")
    stages = {}
    with ExitStack() as agents:
        for number, run in enumerate([*WHOLE, *RESUMED, PLAIN]):
            folder = here / f"{run.mode}-{run.ranks}"
            resume_from = folder / "checkpoints" / f"1-1-{run.report}" if run.report else None
            root = here / str(number) if run.report else folder
            agent = agents.enter_context(
                FakeAgent(root, run.ranks, attempt=2 if run.report else 1, resume_from=resume_from)
            )
            # Loaded by worker processes in one run at 3 ranks; the resumed ones never are, which must not matter.
            workers = 2 if run == Run(3) else 0
            extra = {
                "NAME": str(number),
                "STORE": str(here / f"store-{number}"),
                "MODE": run.mode,
                "WORKERS": str(workers),
            }
            stages[run] = [{**agent.environ(rank), **extra} for rank in range(run.ranks)]
        ended = run_stages(list(stages.values()), LOOP, here)
    assert ended.code == 0, ended.err
    lines = [line.split(" ", 3) for line in ended.out.splitlines() if line.startswith("step ")]
    return {
        run: {int(step): bits for _, name, step, bits in lines if int(name) == number}
        for number, run in enumerate(stages)
    }


@pytest.mark.parametrize("run", RESUMED)
def test_a_resumed_run_is_bit_identical(steps: Steps, run: Run) -> None:
    whole, resumed = steps[run.whole], steps[run]
    first = min(resumed)
    assert len(whole) == max(whole) == 2 * 96 // 4 // run.ranks
    assert 1 < first < max(whole) - 2
    assert resumed == {step: bits for step, bits in whole.items() if step >= first}


def test_without_fixed_buckets_three_ranks_differ(steps: Steps) -> None:
    whole, resumed = steps[PLAIN.whole], steps[PLAIN]
    differing = [step for step in resumed if resumed[step] != whole[step]]
    assert differing, "DDP itself resumes bit-identically: what `buckets` does is no longer needed"
