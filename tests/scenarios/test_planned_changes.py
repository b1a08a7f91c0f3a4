"""Sizes change while a job trains, with real agents and ranks: no step is lost, none is made twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.edited import Edited
from support.scenario import Stage
from trainjob.launch.local import drive
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract

pytestmark = pytest.mark.slow

RESIZE = Path(__file__).parent / "loops" / "resize.py"


def steps_of(stage: Stage) -> list[tuple[int, int, int]]:
    """(attempt, step, world size) of each step that rank 0 made."""
    path = stage.notes / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in lines)]


def test_two_four_two_workers_lose_no_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MemoryCluster", Edited)
    wishes = [(2, 4), (4, 2)]

    def edit(event: LocalEvent) -> None:
        made = steps_of(stage)
        size = made[-1][2] if made else 0
        if wishes and size == wishes[0][0] and sum(world == size for _, _, world in made) >= 5:
            Edited.newest.edit(workers=wishes.pop(0)[1])
        elif not wishes and size == 2 and len({attempt for attempt, _, _ in made}) == 3:
            (stage.notes / "enough").touch()

    told = stage.run(stage.job(script=RESIZE), edit)
    assert told.status.holds("Complete"), told.text()
    made = steps_of(stage)
    assert [step for _, step, _ in made] == list(range(1, len(made) + 1)), told.text()
    sizes = {attempt: world for attempt, _, world in made}
    assert list(sizes.values()) == [2, 4, 2], told.text()
    ends = [entry.end_cause for entry in told.status.history]
    assert ends == [contract.REASON_SCALED, contract.REASON_SCALED, contract.REASON_COMPLETED]
    assert (told.status.failures.counted, told.status.failures.preemptions) == (0, 0)
