"""`tj doctor` of this machine: what is seen, and what each of it means for a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainjob.agent.processes import memory
from trainjob.cli.finding import Level
from trainjob.cli.local import machine
from trainjob.cli.local.machine import GIB, Machine
from trainjob.cli.main import main

GOOD = Machine(
    python=(3, 12, 1),
    executable="/venv/bin/python",
    system="linux",
    torch="2.9.0",
    devices=0,
    hidden=False,
    cores=8,
    memory=32 * GIB,
    shm=16 * GIB,
    storage="/home/anna/trainjob_results",
    disk=100 * GIB,
    writable=True,
    files=65536,
    untried=False,
)


def test_a_good_machine_needs_nothing() -> None:
    assert [(finding.level, finding.mend) for finding in machine.judge(GOOD)] == [(Level.OK, "")] * 9


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, "ranks are forks of a process that has imported torch"),
        ({"untried": True}, "ranks start in new interpreters: this worker has accelerators"),
        ({"memory": 300 << 20}, "ranks start in new interpreters: this worker has 300 MiB"),
    ],
)
def test_how_ranks_start_is_said(change: dict[str, Any], found: str) -> None:
    (said,) = [each for each in machine.judge(replace(GOOD, **change)) if each.check == "starts"]
    assert (said.level, said.mend) == (Level.OK, "") and found in said.found


@pytest.mark.parametrize(
    ("change", "check", "level", "found", "mend"),
    [
        ({"system": "darwin"}, "python", Level.FAIL, "darwin", "tj submit"),
        ({"torch": None}, "torch", Level.WARN, "not installed in this Python", "/venv/bin/python -m pip install torch"),
        ({"torch": "2.9.0+cpu", "devices": 2}, "torch", Level.FAIL, "there are 2 GPUs", "pytorch.org"),
        ({"hidden": True}, "gpus", Level.WARN, "CUDA_VISIBLE_DEVICES hides all", "unset CUDA_VISIBLE_DEVICES"),
        ({"cores": 1.5}, "cores", Level.WARN, "1.5 for jobs", "one core"),
        ({"memory": GIB}, "memory", Level.WARN, "1.0 GiB free", "fewer --workers"),
        ({"shm": 64 << 20}, "shm", Level.WARN, "64.0 MiB free in /dev/shm", "--shm-size"),
        ({"shm": None}, "shm", Level.WARN, "no /dev/shm", "num_workers=0"),
        ({"disk": GIB}, "disk", Level.WARN, "1.0 GiB free", "tj rm --older-than"),
        ({"files": 200}, "files", Level.WARN, "may open 200: enough for 51 workers", "fewer than 52 --workers"),
        ({"writable": False}, "disk", Level.FAIL, "cannot be written", "--storage FOLDER"),
    ],
)
def test_what_is_wrong_is_told_with_what_mends_it(
    change: dict[str, object], check: str, level: Level, found: str, mend: str
) -> None:
    findings = machine.judge(replace(GOOD, **change))
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    assert [(finding.check, finding.level) for finding in wrong] == [(check, level)]
    assert found in wrong[0].found and mend in wrong[0].mend


def test_gpus_are_those_that_jobs_may_use() -> None:
    seen = machine.look({"CUDA_VISIBLE_DEVICES": "3,5"})
    assert (seen.devices, seen.hidden) == (2, True)
    assert "tj run SCRIPT --gpus 2" in machine.judge(replace(GOOD, devices=2))[2].found


def test_memory_is_what_jobs_can_still_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent sees it, who forks ranks or not: a container's processes take of its limit."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {GIB >> 10} kB\n")
    monkeypatch.setattr(memory, "ROOT", str(tmp_path))
    assert machine.look({}).memory == GIB
    (group / "memory.max").write_text(f"{3 * GIB}\n")
    (group / "memory.current").write_text(f"{3 * GIB - (300 << 20)}\n")
    seen = machine.look({})
    assert seen.memory == 300 << 20
    (said,) = [each for each in machine.judge(seen) if each.check == "starts"]
    assert "in new interpreters: this worker has 300 MiB of memory left" in said.found


def test_the_command_looks_at_this_machine_and_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    main(["doctor", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found][-1] == "cluster" and "no kubeconfig" in found[-1]["found"]
    assert str(tmp_path / "trainjob_results") in next(each["found"] for each in found if each["check"] == "disk")
