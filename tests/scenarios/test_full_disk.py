"""Storage that fills up in the middle: training goes on, it is said once, and the job completes when there is space
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scenario import Stage
from support.small_disk import fill, small_disk
from trainjob.launch.local.backend import LocalEvent

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(stage: Stage) -> Iterator[Path]:
    with small_disk(stage.storage) as path:
        yield path


def test_a_full_disk_holds_up_the_end_and_nothing_else(stage: Stage, disk: Path) -> None:
    filler = disk / "filler"
    full: list[str] = []

    def listen(event: LocalEvent) -> None:
        if not filler.exists() and not full and "starts from the beginning" in event.text:
            fill(filler)
            stage.go()
        if "cannot be stored" in event.text and event.kind == "line":
            full.append(event.text)
        if full and "all ranks have ended" in event.text:  # which is said again and again
            filler.unlink(missing_ok=True)

    told = stage.run(stage.job("--steps", "2", "--pause", "0.3", "--hold", "0", keep=1), listen)
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 1 and told.status.failures.counted == 0
    assert full and "No space left on device" in full[0] and "Free space there (df -h" in full[0]
    assert stage.committed()[-1] == "1-1-2"
