"""Under enable_reproducibility a job that lost ranks has the losses of one that did not, bit for bit (at 2 and 4
ranks: torchside/test_exact).
"""

from __future__ import annotations

import pytest

from support.faults import Faults
from support.losses import losses
from support.scenario import LOOPS, Stage

pytestmark = pytest.mark.slow

RANKS = 3
"""Of two, a sum is the same in either order."""
STEPS = 240 // (10 * RANKS)
"""Of an epoch; reports come every 3."""


def test_the_losses_of_an_interrupted_run_equal_those_of_an_uninterrupted_one(stage: Stage) -> None:
    quiet, struck = Stage(stage.root / "quiet"), Stage(stage.root / "struck")
    told = quiet.run(quiet.job(script=LOOPS / "ddp.py", workers=RANKS))
    assert told.status.holds("Complete"), told.text()
    # In the first epoch between two reports; at other places: torchside/test_exact.
    struck.plan(Faults().kill(rank=RANKS - 1, at_step=5))
    told = struck.run(struck.job(script=LOOPS / "ddp.py", workers=RANKS))
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 2, told.text()
    for rank in range(RANKS):
        wanted, found = losses(quiet.notes, rank), losses(struck.notes, rank)
        assert len(wanted) == 2 * STEPS
        assert found == wanted
