"""How agents end: told to, by SIGTERM, by their launcher's death, by a bad environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.agent_rig import ROOT, Rig, processes_with
from support.patience import HANG_S
from support.tuned_agent import entry
from trainjob_api import contract

pytestmark = pytest.mark.slow

SAVE = """
import os, time, pathlib, tempfile, trainjob
c = trainjob.get_context()
with tempfile.TemporaryDirectory() as d:
    pathlib.Path(d, f"part-{c.rank}").write_bytes(os.urandom(SIZE))
    trainjob.report({"loss": 1.0}, checkpoint=trainjob.Checkpoint.from_directory(d), step=1)
print("acknowledged", flush=True)
time.sleep(600)
"""

THREAD_HANGS = """
import asyncio, os, threading
from trainjob.agent.work import Work
listen = Work.listen
async def listen_and_lend(work):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await listen(work)
Work.listen = listen_and_lend
from trainjob.agent.__main__ import main
os._exit(main())
"""
"""An agent of whose threads one never comes back, as one that reads from a disk that hangs."""

STEP_FAILS = """
import os
from trainjob.agent.control.sync import Sync
from trainjob.agent.work import Work
step = STEP
async def fails(self, *arguments):
    await step(self, *arguments)
    raise RuntimeError("can't start new thread")
STEP = fails
from trainjob.agent.__main__ import main
os._exit(main())
"""
"""An agent at a limit of processes, say, one of whose last steps fails."""


def saving(size: int = 1000) -> str:
    return SAVE.replace("SIZE", str(size))


def test_sigterm_says_so_at_once_stores_what_is_staged_and_ends(tmp_path: Path) -> None:
    with Rig(tmp_path, script=saving(20_000_000), storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait_text(1, "acknowledged")
        rig.wait_text(0, "acknowledged")
        for agent in rig.agents.values():
            agent.process.send_signal(signal.SIGTERM)
        rig.wait(lambda: rig.report(1)["draining"], "said so")
        assert (rig.exit_code(0), rig.exit_code(1)) == (contract.EXIT_REMOVED, contract.EXIT_REMOVED)
        assert (tmp_path / "store/checkpoints/1-1-1/.trainjob/manifest.json").exists()
        rig.wait(lambda: rig.ended(0, 1), "their last words are heard")
        assert {r["kind"] for r in rig.ranks().values()} == {contract.END_STOPPED}
        assert processes_with(str(rig.folder)) == []


def test_sigterm_before_any_attempt_ends_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path, script="", agents=1) as rig:
        rig.wait(lambda: rig.coordinator.reports)
        rig.agents[0].process.send_signal(signal.SIGTERM)
        assert rig.exit_code(0) == contract.EXIT_REMOVED


def test_a_thread_that_hangs_keeps_no_pod(tmp_path: Path) -> None:
    with Rig(tmp_path, script="", agents=1, entry=("-c", THREAD_HANGS)) as rig:
        rig.wait(lambda: rig.coordinator.reports)
        rig.exit(contract.EXIT_OK)
        assert rig.exit_code(0) == contract.EXIT_OK


@pytest.mark.parametrize("step", ["Work.end", "Sync.last_word", "Work.close"])
def test_a_last_step_that_fails_takes_no_exit_code_and_no_last_word(tmp_path: Path, step: str) -> None:
    with Rig(tmp_path, script="", agents=1, entry=("-c", STEP_FAILS.replace("STEP", step))) as rig:
        rig.wait(lambda: rig.coordinator.reports)
        rig.exit(contract.EXIT_JOB_FAILED)
        assert rig.exit_code(0) == contract.EXIT_JOB_FAILED
        assert rig.report(0)["last"]
        assert "agent | RuntimeError: can't start new thread" in rig.text(0)


def test_sigterm_of_a_complete_job_is_no_failure(tmp_path: Path) -> None:
    with Rig(tmp_path, script="import trainjob\ntrainjob.barrier()\n") as rig:
        rig.run(1)
        rig.wait(lambda: all(r["completed"] for r in rig.coordinator.reports.values()), "completed")
        for agent in rig.agents.values():
            agent.process.send_signal(signal.SIGTERM)
        assert (rig.exit_code(0), rig.exit_code(1)) == (0, 0)


def test_the_launchers_death_ends_ranks_commits_and_cleans_up(tmp_path: Path) -> None:
    with Rig(tmp_path, script=saving(), storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait_text(1, "acknowledged")
        rig.wait_text(0, "acknowledged")
        rig.coordinator.stop()
        for agent in rig.agents.values():
            os.close(agent.parent)
            agent.parent = -1
        assert (rig.exit_code(0), rig.exit_code(1)) == (contract.EXIT_LAUNCHER_DIED, contract.EXIT_LAUNCHER_DIED)
        assert (tmp_path / "store/checkpoints/1-1-1/.trainjob/manifest.json").exists()
        assert not rig.work_dir(0).exists() and not rig.work_dir(1).exists()
        assert processes_with(str(rig.folder)) == []


def test_told_to_exit_it_finishes_the_upload_first(tmp_path: Path) -> None:
    with Rig(tmp_path, script=saving(30_000_000), storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait_text(1, "acknowledged")
        rig.wait_text(0, "acknowledged")
        rig.exit(contract.EXIT_JOB_FAILED)
        assert (rig.exit_code(0), rig.exit_code(1)) == (contract.EXIT_JOB_FAILED, contract.EXIT_JOB_FAILED)
        assert (tmp_path / "store/checkpoints/1-1-1/.trainjob/manifest.json").exists()


def test_exit_leaves_no_socket_and_no_process(tmp_path: Path) -> None:
    with Rig(tmp_path, script="import trainjob\ntrainjob.barrier()\n", storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.exit(0)
        assert (rig.exit_code(0), rig.exit_code(1)) == (0, 0)
        assert processes_with(str(rig.folder)) == []
        assert not (rig.work_dir(0) / "run").exists()


def agent(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "worker-image")])
    return subprocess.run(
        [sys.executable, "-m", "trainjob.agent", *arguments],
        env={"PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_a_bad_environment_is_one_clear_error_with_its_own_exit_code() -> None:
    ended = agent({contract.ENV_SLOT: "two", contract.ENV_AGENT_SPEC: "{"})
    assert ended.returncode == contract.EXIT_BAD_CONFIG
    assert "TRAINJOB_SLOT='two' is no whole number" in ended.stderr
    assert "TRAINJOB_COORDINATOR is not set" in ended.stderr
    assert "TRAINJOB_AGENT_SPEC is no AgentSpec as JSON" in ended.stderr
    assert "no command was given" in ended.stderr
    assert "Traceback" not in ended.stderr


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_it_is_up_with_little_work_and_small(tmp_path: Path) -> None:
    """By its own CPU time: how long that takes is the machine's. The figures are printed (pytest -s)."""
    with Rig(tmp_path, script="import time\ntime.sleep(600)\n", agents=1, storage=tmp_path / "store") as rig:
        rig.wait(lambda: rig.coordinator.reports)
        rig.run(1)
        rig.wait(lambda: rig.running(0))
        status = Path(f"/proc/{rig.agents[0].process.pid}/status").read_text()
        (rss,) = [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")]
        rig.agents[0].process.kill()
        rig.exit_code(0)
        rig.coordinator.forget(0)
        rig.start(0)
        rig.wait(lambda: rig.coordinator.reports)
        took = cpu_s(rig.agents[0].process.pid)
        print(f"agent: first sync after {took * 1000:.0f} ms of CPU, {rss:.1f} MB resident")
        assert took < 2.0
        assert rss < 40


WAITS = """
import time, trainjob
if trainjob.get_context().rank == 1:
    print("hangs", flush=True)
    time.sleep(600)
print("waits", flush=True)
trainjob.barrier()
"""


def test_who_waits_for_a_rank_that_was_told_to_end_is_ended_without_a_traceback(tmp_path: Path) -> None:
    """However long after the one the other is told."""
    with Rig(tmp_path, script=WAITS, entry=entry(barriers__barrier__STOPPED_PATIENCE_S=2 * HANG_S)) as rig:
        rig.run(1)
        rig.wait_text(1, "hangs")
        rig.wait_text(0, "waits")
        rig.agents[1].process.send_signal(signal.SIGTERM)
        assert rig.exit_code(1) == contract.EXIT_REMOVED
        rig.agents[0].process.send_signal(signal.SIGTERM)
        assert rig.exit_code(0) == contract.EXIT_REMOVED
        rig.wait(lambda: rig.ended(0, 1), "their last words are heard")
        assert {r["kind"] for r in rig.ranks().values()} == {contract.END_STOPPED}
        assert "Traceback" not in rig.text(0)
