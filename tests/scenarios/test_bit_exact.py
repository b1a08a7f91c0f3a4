"""Under enable_reproducibility a job that lost ranks has the losses of one that did not, bit for bit (at 2 and 4
ranks: torchside/test_exact, and here with `make matrix`, as forks and in new interpreters).
"""

from __future__ import annotations

import itertools
import os

import pytest

from support.faults import Faults
from support.losses import losses
from support.scenario import LOOPS, Stage
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

pytestmark = pytest.mark.slow

STRUCK_AT = 5
"""In the first epoch between two reports, which come every 3 steps; at other places: torchside/test_exact."""
EVERY = list(itertools.product((2, 3, 4), (contract.PREFORK_ALWAYS, contract.PREFORK_NEVER)))
SOME = [(3, contract.PREFORK_DEFAULT)]
"""Of two, a sum is the same in either order."""


@pytest.mark.parametrize(("ranks", "prefork"), EVERY if os.environ.get("MATRIX") == "all" else SOME)
def test_the_losses_of_an_interrupted_run_equal_those_of_an_uninterrupted_one(
    stage: Stage, ranks: int, prefork: str
) -> None:
    quiet, struck = Stage(stage.root / "quiet"), Stage(stage.root / "struck")
    told = quiet.run(job_of(quiet, ranks, prefork))
    assert told.status.holds("Complete"), told.text()
    struck.plan(Faults().kill(rank=ranks - 1, at_step=STRUCK_AT).raises("no luck", rank=0, at_step=STRUCK_AT + 2))
    told = struck.run(job_of(struck, ranks, prefork))
    assert told.status.holds("Complete"), told.text()
    assert told.struck == [0, 1] and told.attempts == 3, told.text()
    for rank in range(ranks):
        wanted, found = losses(quiet.notes, rank), losses(struck.notes, rank)
        assert len(wanted) == 2 * 240 // (10 * ranks)
        assert found == wanted


def job_of(stage: Stage, ranks: int, prefork: str) -> TrainJob:
    made = stage.job(script=LOOPS / "ddp.py", workers=ranks)
    runtime = made.spec.runtime.model_copy(update={"prefork": prefork})
    return made.model_copy(update={"spec": made.spec.model_copy(update={"runtime": runtime})})
