"""The fixture `stage`: a place of a test's own for its jobs, which must leave nothing behind."""

from __future__ import annotations

import os
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
    before = left_in_shared_memory()
    made = Stage(tmp_path)
    yield made
    try:
        wait_until(lambda: not left_behind(tmp_path))
    except TimeoutError:
        pytest.fail("left behind: " + "; ".join(left_behind(tmp_path)))
    # Other tests run on this machine at the same time; what they use for a while goes by itself.
    new = left_in_shared_memory() - before
    try:
        wait_until(lambda: not new & left_in_shared_memory() and not _socket_folders(made))
    except TimeoutError:
        pytest.fail(f"left behind: {sorted(new & left_in_shared_memory()) + _socket_folders(made)}")


_NAMES = ("psm_", "sem.", "torch_")
"""With which begins what Python and torch put into shared memory."""


def left_in_shared_memory() -> set[str]:
    """What a job could leave there. What others on this machine leave has other names, and may stay."""
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(_NAMES)}


def _socket_folders(stage: Stage) -> list[str]:
    """Where this test's agents keep their sockets when the job's own folder has too long a path for one."""
    uids = {
        note.pod[:8] for path in stage.root.rglob("notes") if path.is_dir() for note in Stage(path.parent).read_notes()
    }
    return [f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(tuple(f"trainjob-{uid}-" for uid in uids))]
