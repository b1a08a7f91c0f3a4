"""Under enable_reproducibility a job that lost ranks has the losses of one that did not, bit for bit, at 2 and 3 ranks (at 4: torchside/test_exact)."""

from __future__ import annotations

import pytest

from support.faults import fail_at
from support.scenario import LOOPS, Stage

pytestmark = pytest.mark.slow


def losses(stage: Stage, rank: int) -> dict[int, str]:
    """The last word on each step; a step that was repeated after a resume must not contradict itself."""
    found: dict[int, str] = {}
    for line in (stage.notes / f"losses-{rank}").read_text().splitlines():
        step, value = line.split()
        assert found.setdefault(int(step), value) == value, f"step {step} of rank {rank} came out differently when it was repeated"
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_losses_of_an_interrupted_run_equal_those_of_an_uninterrupted_one(stage: Stage, ranks: int) -> None:
    quiet, struck = Stage(stage.root / "quiet"), Stage(stage.root / "struck")
    told = quiet.run(quiet.job(script=LOOPS / "ddp.py", workers=ranks))
    assert told.status.holds("Complete"), told.text()
    # In the first epoch between two reports, and in the second one just after a report.
    second = [fail_at(rank=0, step=240 // (10 * ranks) + 3).sigkill().in_attempt(2)] if ranks == 2 else []
    struck.plan(fail_at(rank=ranks - 1, step=5).sigkill(), *second)
    told = struck.run(struck.job(script=LOOPS / "ddp.py", workers=ranks))
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 2 + len(second), told.text()
    for rank in range(ranks):
        wanted, found = losses(quiet, rank), losses(struck, rank)
        assert len(wanted) == 2 * (240 // (10 * ranks))
        assert found == wanted
