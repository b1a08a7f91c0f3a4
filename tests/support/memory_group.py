"""A memory cgroup of a test's own, in which the kernel kills for memory: v1 or v2, if root may make one here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.scenario import wait_until

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Its folder: what is written to its `cgroup.procs`, and whatever that starts, gets so much memory more than it has.
    Skips where that cannot be had. (Not this process: to the kernel it would be the largest there.)
    """
    home, group = _own(), None
    try:
        group = home / f"test-{os.getpid()}"
        group.mkdir()
        _write(group / ("memory.limit_in_bytes" if _is_v1() else "memory.max"), limit)
        if not _is_v1():
            _write(group / "memory.swap.max", 0)
    except OSError as error:
        if group is not None and group.exists():
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().split(), HANG_S)
        group.rmdir()


def _own() -> Path:
    """The group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if _is_v1() and "memory" in controllers.split(","):
            return _V1 / path.lstrip("/")
        if not _is_v1() and number == "0":
            return _V2 / path.lstrip("/")
    pytest.skip("this process is in no memory cgroup")


def _is_v1() -> bool:
    return (_V1 / "memory.limit_in_bytes").exists()


def _write(path: Path, value: int) -> None:
    path.write_text(f"{value}\n")
