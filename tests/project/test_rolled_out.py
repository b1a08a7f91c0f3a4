"""The end-to-end tests' release is rolled out once, however many processes a run has."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import release
from support.patience import HANG_S


def test_who_waited_for_another_process_rolls_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator would be replaced while tests of that process run."""
    rolled_out: list[str] = []
    both, locked = threading.Barrier(2), release.fcntl.flock

    def lock(file: Any, how: int) -> None:
        both.wait(HANG_S)
        locked(file, how)

    monkeypatch.setattr(release.fcntl, "flock", lock)
    monkeypatch.setattr(release, "install", rolled_out.append)
    with ThreadPoolExecutor(2) as processes:
        list(processes.map(release._roll_out.__wrapped__, [tmp_path] * 2))
    assert len(rolled_out) == 1
