"""Under enable_reproducibility a job that lost ranks has the losses of one that did not, bit for bit (at 2 and 4
ranks: torchside/test_exact).
"""

from __future__ import annotations

import pytest

from support.faults import fail_at
from support.scenario import LOOPS, Stage

pytestmark = pytest.mark.slow

RANKS = 3
"""Of two, a sum is the same in either order."""
STEPS = 240 // (10 * RANKS)
"""Of an epoch; reports come every 3."""


def losses(stage: Stage, rank: int) -> dict[int, str]:
    """The last word on each step; a step that was repeated after a resume must not contradict itself."""
    found: dict[int, str] = {}
    for line in (stage.notes / f"losses-{rank}").read_text().splitlines():
        step, value = line.split()
        assert found.setdefault(int(step), value) == value, (
            f"step {step} of rank {rank} came out differently when it was repeated"
        )
    return found


def test_the_losses_of_an_interrupted_run_equal_those_of_an_uninterrupted_one(stage: Stage) -> None:
    quiet, struck = Stage(stage.root / "quiet"), Stage(stage.root / "struck")
    told = quiet.run(quiet.job(script=LOOPS / "ddp.py", workers=RANKS))
    assert told.status.holds("Complete"), told.text()
    # In the first epoch between two reports; at other places: torchside/test_exact.
    struck.plan(fail_at(rank=RANKS - 1, step=5).sigkill())
    told = struck.run(struck.job(script=LOOPS / "ddp.py", workers=RANKS))
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 2, told.text()
    for rank in range(RANKS):
        wanted, found = losses(quiet, rank), losses(struck, rank)
        assert len(wanted) == 2 * STEPS
        assert found == wanted
