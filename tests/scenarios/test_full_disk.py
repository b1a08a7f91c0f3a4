"""Storage that fills up in the middle: training goes on, it is said once, and the job completes when there is space
again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scenario import Stage
from trainjob.launch.local.backend import LocalEvent

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(stage: Stage) -> Iterator[Path]:
    stage.storage.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(stage.storage)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a file system needs root")
    yield stage.storage
    subprocess.run(["umount", str(stage.storage)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def test_a_full_disk_holds_up_the_end_and_nothing_else(stage: Stage, small_disk: Path) -> None:
    filler = small_disk / "filler"
    full: list[str] = []

    def listen(event: LocalEvent) -> None:
        if not filler.exists() and not full and "starts from the beginning" in event.text:
            fill(filler)
        if "cannot be stored" in event.text and event.kind == "line":
            full.append(event.text)
        if "all ranks have ended" in event.text:
            filler.unlink(missing_ok=True)

    told = stage.run(stage.job("--steps", "2", "--pause", "0.3", keep=1), listen)
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 1 and told.status.failures.counted == 0
    assert full and "No space left on device" in full[0] and "Free space there (df -h" in full[0]
    assert stage.committed()[-1] == "1-1-2"
