"""Processes that stand still all at once, as when a laptop sleeps: a freezer cgroup, v1 or v2, if root may make one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.scenario import wait_until

_V1, _V2 = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup")


class Freezer:
    """One group of processes."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def take(self, pid: int) -> None:
        """A process, and whatever it starts from now on."""
        (self._group / "cgroup.procs").write_text(f"{pid}\n")

    def freeze(self) -> None:
        """Returns once all stand still."""
        if (self._group / "freezer.state").exists():
            (self._group / "freezer.state").write_text("FROZEN\n")
            wait_until(lambda: (self._group / "freezer.state").read_text().strip() == "FROZEN", HANG_S)
        else:
            (self._group / "cgroup.freeze").write_text("1\n")
            wait_until(lambda: "frozen 1" in (self._group / "cgroup.events").read_text(), HANG_S)

    def thaw(self) -> None:
        """They go on."""
        if (self._group / "freezer.state").exists():
            (self._group / "freezer.state").write_text("THAWED\n")
        else:
            (self._group / "cgroup.freeze").write_text("0\n")


@contextmanager
def freezer() -> Iterator[Freezer]:
    """An empty group; it goes once its processes have ended. Skips where there can be none."""
    home = _V1 if (_V1 / "cgroup.procs").exists() else _V2
    group = home / f"trainjob-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer cgroup can be made here: {error}")
    frozen = Freezer(group)
    try:
        yield frozen
    finally:
        frozen.thaw()
        wait_until(lambda: not (group / "cgroup.procs").read_text().split(), HANG_S)
        group.rmdir()
