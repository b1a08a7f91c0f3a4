"""Whatever breaks, in whatever order: the promises hold after each change, and the job ends once the faults stop.

Each seed is one run of several virtual minutes. A failing seed is printed as its smallest plan, with a timeline, and
replayed with `TRAINJOB_SIM_SEED=<n>`; `make sim SEEDS=<count>` runs more of them.
"""

from __future__ import annotations

import os

import pytest

from support import random_runs
from support.misfortunes import BLOWS
from support.random_runs import Ran, Struck, plan_of, quiet_logs, run, shrink, tale

SEEDS = int(os.environ.get("TRAINJOB_SIM_SEEDS", "40"))
ONLY = os.environ.get("TRAINJOB_SIM_SEED")
BATCH = 10


def seeds() -> list[range]:
    """Batches, so that a run is spread over workers and a test has a name that tells its seeds."""
    if ONLY is not None:
        return [range(int(ONLY), int(ONLY) + 1)]
    return [range(first, min(first + BATCH, SEEDS)) for first in range(0, SEEDS, BATCH)]


@pytest.mark.parametrize("batch", seeds(), ids=lambda batch: f"{batch[0]}-{batch[-1]}")
def test_promises_hold_and_the_job_ends(batch: range) -> None:
    with quiet_logs():
        for seed in batch:
            ran = run(plan_of(seed))
            assert ran.failure is None, tale(shrink(ran))


def test_a_run_is_the_same_each_time() -> None:
    with quiet_logs():
        one, other = run(plan_of(3)), run(plan_of(3))
    assert one.timeline == other.timeline and one.faults == other.faults > 0


def test_a_failing_plan_shrinks_to_the_blows_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that befalls it, a lost pod and a later scaling are what this one is about."""

    def fails(plan: random_runs.Plan) -> Ran:
        blows = [struck.blow for struck in plan.blows]
        bad = "lose_pod" in blows and "scale" in blows[blows.index("lose_pod") :]
        return Ran(plan, failure="broken" if bad else None)

    monkeypatch.setattr(random_runs, "run", fails)
    names = [*sorted(BLOWS), *sorted(BLOWS)]
    plan = random_runs.replace(
        plan_of(0), blows=tuple(Struck(float(at), name, at) for at, name in enumerate(names)), api_errors=0.3
    )
    smallest = shrink(fails(plan))
    assert [struck.blow for struck in smallest.plan.blows] == ["lose_pod", "scale"]
    assert smallest.plan.api_errors == 0.0
    assert "lose_pod at" in tale(smallest)
