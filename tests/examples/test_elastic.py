"""examples/elastic/README.md: its job is made smaller while it trains, and makes as many steps as it would have."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.edited import Edited
from support.isolation import ROOT
from support.local_agent import wait_for_the_operator
from support.patience import HANG_S
from trainjob.launch import job as jobs
from trainjob.launch.local import drive
from trainjob.launch.local.backend import LocalEvent, run_job
from trainjob_api import contract
from trainjob_api.v1alpha1 import Elastic
from trainjob_api.validation import parse_trainjob

FOLDER = ROOT / "examples" / "elastic"
EPOCHS = 4
STEPS = EPOCHS * math.ceil(1797 / 48)

HELD = """
import os, runpy, sys, time
from trainjob.session import calls

plain, (go, script, *arguments) = calls.report, sys.argv[1:]

def report(*values, **named):
    while named["step"] > 30 and not os.path.exists(go):
        time.sleep(0.02)
    plain(*values, **named)

calls.report, sys.argv = report, [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""
"""Runs a script whose ranks wait after their 30th step until `go` is there."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")]


def test_another_size_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MemoryCluster", Edited)
    wait_for_the_operator(monkeypatch)
    held, go = tmp_path / "held.py", tmp_path / "go"
    held.write_text(HELD)
    script = jobs.ScriptJob(
        command=(sys.executable, str(held), str(go), str(FOLDER / "train.py"), "--epochs", str(EPOCHS)),
        workers=2,
        name="elastic",
        storage=str(tmp_path),
        environment={"OMP_NUM_THREADS": "1"},
    )
    job = jobs.from_script(script)
    spec = job.spec.model_copy(update={"elastic": Elastic(min_workers=1, max_workers=3)})
    lines: list[str] = []
    edits = [1]

    def listen(event: LocalEvent) -> None:
        if event.kind == "line":
            lines.append(event.text)
        if event.job is not None and (event.job.status.progress.step or 0) > 20 and edits:
            Edited.newest.edit("elastic", workers=edits.pop())
        # The steps that are left take less time than it may take until the edit is seen.
        if event.job is not None and event.job.status.boundary is not None:
            go.touch()

    outcome = run_job(job.model_copy(update={"spec": spec}), listener=listen)
    status, said = outcome.job.status, "\n".join(lines)
    assert status.holds("Complete"), said
    assert [entry.world_size for entry in status.history] == [2, 1], said
    assert [entry.end_cause for entry in status.history] == [contract.REASON_SCALED, contract.REASON_COMPLETED]
    assert f"trained {STEPS} steps" in said and "attempt 2 with 1 ranks: from step" in said
    assert status.goodput is not None and status.failures.counted == 0


def test_what_the_page_prints_runs(tmp_path: Path) -> None:
    """The command of examples/elastic/README.md, with one epoch instead of twenty."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    (typed,) = re.findall(r"^tj (run .*)$", page, re.MULTILINE)
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainjob.cli", *shlex.split(typed), "--plain", "--", "--epochs", "1"],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "attempt 1 with 3 ranks: from step 0" in said and f"trained {math.ceil(1797 / 48)} steps" in said


def test_the_manifest_is_valid() -> None:
    job = parse_trainjob(yaml.safe_load((FOLDER / "trainjob.yaml").read_text()))
    assert job.spec.elastic is not None and job.spec.elastic.min_workers == 1
