"""examples/mpi under a real mpirun, as docs/frameworks.md runs it: undisturbed, with each of its processes killed, and two
jobs at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.isolation import ROOT
from support.open_mpi import variables as open_mpi_variables
from support.spoken import said
from trainjob import Result

LIMIT_S = 500
PACKAGES = next((Path(path, "debian", "usr") for path in sys.path if Path(path, "debian", "usr").is_dir()), None)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 30)]


@pytest.fixture(autouse=True)
def open_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if it were installed; else the machine's own."""
    if PACKAGES is not None:
        for name, value in open_mpi_variables(PACKAGES, path=os.environ["PATH"]).items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    if find_spec("mpi4py") is None or shutil.which("mpirun.openmpi") is None:
        pytest.skip("Open MPI 4 and mpi4py are not installed: make test-frameworks")


def manifest(
    here: Path,
    *script: str,
    options: tuple[str, ...] = (),
    workers: int = 2,
    name: str = "job",
    processes: int = 1,
) -> list[str]:
    """The words of `tj` that run the example's job as a job of this machine."""
    job = yaml.safe_load((ROOT / "examples" / "mpi" / "trainjob.yaml").read_text(encoding="utf-8"))
    job["metadata"]["name"] = name
    job["spec"].update(workers=workers, processesPerWorker=processes)
    pod = job["spec"]["template"]["spec"]
    train = script or (str(ROOT / "examples" / "mpi" / "train.py"),)
    program, python = pod["containers"][0]["command"][:2]
    assert (program, python) == ("mpirun", "python")
    pod["containers"][0]["command"] = ["mpirun.openmpi", *options, sys.executable, *train]
    here.mkdir(exist_ok=True)
    file = here / f"{name}.yaml"
    file.write_text(yaml.safe_dump(job), encoding="utf-8")
    return ["-m", "trainjob.cli.main", "run", "-f", str(file), "--local", "--storage", str(here)]


def losses(here: Path, name: str = "job") -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


EXAMPLE = str(ROOT / "examples" / "mpi" / "train.py")
STRUCK = str(Path(__file__).with_name("struck.py"))


def test_a_killed_rank_changes_no_number(tmp_path: Path) -> None:
    said(manifest(tmp_path / "plain"), tmp_path, limit_s=LIMIT_S)
    shown = said(manifest(tmp_path / "struck", STRUCK, "3", EXAMPLE), tmp_path, limit_s=LIMIT_S)
    assert "rank 1 on job-1 did not end well: Killed" in shown, shown
    assert "attempt 2 resumes from checkpoint 1-1-2" in shown, shown
    expected = losses(tmp_path / "plain")
    assert sorted(expected) == list(range(20, 201, 20))
    assert losses(tmp_path / "struck") == expected


PLACES = """
import pathlib, sys
from mpi4py import MPI
import trainjob
context = trainjob.get_context()
place = (context.rank, context.world_size, context.local_rank, context.local_world_size, context.node_rank)
assert (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == place[:2]
pathlib.Path(sys.argv[1], f"place-{context.rank}").write_text(repr(place))
"""


def test_several_ranks_a_worker_are_numbered_through_and_one_that_is_killed_changes_no_number(tmp_path: Path) -> None:
    (tmp_path / "places.py").write_text(PLACES)
    words = manifest(tmp_path / "places", str(tmp_path / "places.py"), str(tmp_path), processes=2)
    said(words, tmp_path, limit_s=LIMIT_S)
    found = [(tmp_path / f"place-{rank}").read_text() for rank in range(4)]
    assert found == [repr((rank, 4, rank % 2, 2, rank // 2)) for rank in range(4)]

    said(manifest(tmp_path / "plain", processes=2), tmp_path, limit_s=LIMIT_S)
    shown = said(manifest(tmp_path / "struck", STRUCK, "3", EXAMPLE, processes=2), tmp_path, limit_s=LIMIT_S)
    # mpirun ends all where one dies: the one that is named is the one whose end was heard of first.
    assert re.search(r"that spoke as rank [0-3] is gone without a farewell", shown), shown
    assert "attempt 2 resumes from checkpoint 1-1-2" in shown and "with 2 attempts" in shown, shown
    assert losses(tmp_path / "struck") == losses(tmp_path / "plain")


def _side(name: str) -> Callable[[list[str]], bool]:
    return lambda words: "-I" in words[:2] and f"agent.mpi.{name}" in words[3]


KILLS: dict[str, Callable[[list[str]], bool]] = {
    "mpirun": lambda words: Path(words[0]).name.startswith("mpirun"),
    "a daemon": lambda words: words[0] == "orted",
    "a worker's side": _side("daemon_side"),
    "mpirun's side": _side("mpirun_side"),
    # The parent of the process that it started.
    "an agent": _side("daemon_side"),
    "the agent of rank 0": _side("mpirun_side"),
}

WAITS = """
import os, pathlib, runpy, sys, time
import trainjob
from trainjob.session import calls
plain, here = calls.report, pathlib.Path(sys.argv[1])
def report(*arguments, **named):
    plain(*arguments, **named)
    context = trainjob.get_context()
    if context.attempt == 1 and named["step"] == 60:
        (here / f"waits-{context.rank}").touch()
        time.sleep(600)
calls.report = report
sys.argv = [sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _meant(job: int, whom: str) -> int:
    """The one process of the job that is to be killed."""
    parents, found = _parents(), []
    for pid in parents:
        above = pid
        while above in parents and above != job:
            above = parents[above]
        with contextlib.suppress(OSError):
            words = (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace").split("\0")
            if above == job and pid != job and KILLS[whom](words):
                found.append(parents[pid] if "agent" in whom else pid)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("whom", KILLS)
def test_whatever_is_killed_ends_the_attempt_once_and_the_next_resumes(tmp_path: Path, whom: str) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    words = manifest(tmp_path / "struck", str(tmp_path / "waits.py"), str(tmp_path), EXAMPLE)
    with (tmp_path / "shown").open("w+") as output:
        job = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + LIMIT_S
            # A pod that goes takes with it what it alone has staged.
            stored = tmp_path / "struck" / "default" / "job" / "checkpoints" / "1-1-3" / ".trainjob" / "manifest.json"
            while len(list(tmp_path.glob("waits-*"))) < 2 or not stored.exists():
                assert job.poll() is None and time.monotonic() < deadline, (tmp_path / "shown").read_text()
                time.sleep(0.05)
            os.kill(_meant(job.pid, whom), signal.SIGKILL)
            job.wait(LIMIT_S)
        finally:
            job.kill()
        shown = (tmp_path / "shown").read_text()
    assert job.returncode == 0, shown
    assert re.search(r"completed in .* with 2 attempts", shown), shown
    assert "attempt 2 resumes from checkpoint 1-1-3" in shown, shown
    assert not [line for line in shown.splitlines() if "agent |" in line and "Traceback" in line], shown
    assert max(losses(tmp_path / "struck")) == 200


def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, *manifest(tmp_path / name, workers=2, name=name)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "two")
    ]
    for job in both:
        shown, _ = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 0, shown
        assert "with 1 attempt" in shown, shown
    assert losses(tmp_path / "one", "one") == losses(tmp_path / "two", "two")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-n", "1"), "A job has the same number on each: leave out mpirun's -n"),
        (("-n", "2", "--map-by", "node"), ""),
        (("--host", "elsewhere"), "elsewhere"),
    ],
)
def test_ranks_are_started_as_the_job_has_them_or_not_at_all(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    words = manifest(tmp_path / "job", options=options)
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    shown = done.stdout + done.stderr
    assert (done.returncode == 0) == (not why), shown
    assert why in shown
