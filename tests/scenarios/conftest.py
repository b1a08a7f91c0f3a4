"""Each scenario has its own storage and temporary folder, and must leave nothing behind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scenario import Stage, left_behind, wait_until


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = _machine_wide()
    yield Stage(tmp_path)
    try:
        wait_until(lambda: not left_behind(tmp_path), 2.0)
    except TimeoutError:
        pytest.fail("left behind: " + "; ".join(left_behind(tmp_path)))
    # Other tests run on this machine at the same time; what they use for a while goes by itself.
    new = _machine_wide() - before
    try:
        wait_until(lambda: not new & _machine_wide())
    except TimeoutError:
        pytest.fail(f"left behind: {new & _machine_wide()}")


def _machine_wide() -> set[str]:
    """Shared memory, and the folders where agents keep their sockets when the job's own folder has too long a path for one."""
    short = {f"/tmp/{name}" for name in os.listdir("/tmp") if re.match(r"trainjob-[0-9a-f]{8}-", name)}
    return short | {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
