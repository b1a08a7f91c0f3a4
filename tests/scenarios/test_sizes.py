"""One epoch through 2, 4, 3 and 2 ranks: each sample in exactly one step, and the weights of one process."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from scenarios.loops import sizes
from support.scenario import LOOPS, Stage

# Four jobs of eleven ranks in all.
pytestmark = pytest.mark.slow

WALK = ((2, 2), (4, 1), (3, 3), (2, None))
"""(ranks, steps until the job breaks)."""


def _alone(order: list[list[int]]) -> list[list[float]]:
    """What one process has for weights after each of these steps."""
    model, data = sizes.network(), sizes.Numbered()
    optimizer = torch.optim.SGD(model.parameters(), lr=sizes.RATE)
    found = []
    for indices in order:
        optimizer.zero_grad()
        sizes.loss_of(model, torch.stack([data[index][1] for index in indices])).backward()
        optimizer.step()
        found.append(sizes.weights(model))
    return found


def test_each_sample_is_in_one_step_and_the_weights_are_those_of_one_process(stage: Stage) -> None:
    for size, stop in WALK:
        arguments = () if stop is None else ("--stop-after", str(stop))
        job = stage.job(*arguments, script=LOOPS / "sizes.py", workers=1, max_failures=0)
        # All ranks in one pod: forks of one process that has torch.
        spec = job.spec.model_copy(update={"processes_per_worker": size})
        told = stage.run(job.model_copy(update={"spec": spec}))
        assert told.status.holds("Complete" if stop is None else "Failed"), told.text()
    steps: dict[int, list[int]] = {}
    ranks: dict[int, set[int]] = {}
    for path in stage.notes.glob("samples-*"):
        for line in path.read_text().splitlines():
            step, size, _, *samples = map(int, line.split())
            steps.setdefault(step, []).extend(samples)
            ranks.setdefault(step, set()).add(size)
    assert [ranks[step] for step in sorted(steps)] == [{2}, {2}, {4}, {3}, {3}, {3}, {2}, {2}, {2}, {2}]
    assert Counter(sample for samples in steps.values() for sample in samples) == Counter(range(sizes.SAMPLES))
    assert [len(steps[step]) for step in sorted(steps)] == [sizes.GLOBAL] * 9 + [sizes.SAMPLES % sizes.GLOBAL]
    noted = [line.split()[1:] for line in (stage.notes / "weights").read_text().splitlines()]
    for ours, alone in zip(noted, _alone([steps[step] for step in sorted(steps)]), strict=True):
        assert [float.fromhex(value) for value in ours] == pytest.approx(alone, rel=1e-9, abs=1e-12)
