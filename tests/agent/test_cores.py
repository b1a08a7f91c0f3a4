"""Ranks share the cores that their container may use, not those of the machine below it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.trainjobs import document
from trainjob.agent.processes import cores, rank_command
from trainjob.cli.local import machine
from trainjob.launch.local import backend
from trainjob_api.v1alpha1 import TrainJob


@pytest.fixture(autouse=True)
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On a machine of 16 cores; its quota file."""
    monkeypatch.setattr(cores, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path / "sys/fs/cgroup/cpu.max"


@pytest.mark.parametrize(
    ("quota", "found", "threads"),
    [(None, 16.0, "8"), ("max 100000", 16.0, "8"), ("450000 100000", 4.5, "2"), ("50000 100000", 0.5, "1")],
)
def test_the_quota_counts_for_the_agent_the_launcher_and_doctor(
    container: Path, quota: str | None, found: float, threads: str
) -> None:
    if quota is not None:
        container.write_text(f"{quota}\n")
    assert machine.look({}).cores == found
    assert rank_command.environment_of_all({}, ["python", "x.py"], 2)["OMP_NUM_THREADS"] == threads
    job = TrainJob.model_validate(document({"spec.workers": 2}))
    assert backend._threads({}, job)["OMP_NUM_THREADS"] == threads
    assert backend._threads({"OMP_NUM_THREADS": "7"}, job)["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("quota", "found"), [("250000", 2.5), ("-1", 16.0), ("", 16.0)])
def test_the_quota_of_an_older_kernel_s_groups_counts_too(container: Path, quota: str, found: float) -> None:
    folder = container.parent / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.cores() == found
