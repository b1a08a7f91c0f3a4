"""An agent raises its limit of open files, and its ranks get the one that it was given."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from support.agent_rig import Rig
from trainjob.agent.processes import open_files

SHOW = (
    "import resource, subprocess, sys\nprint('rank', resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)\n"
    "subprocess.run([sys.executable, '-c', 'import resource; print(\"child\", resource.getrlimit(7), flush=True)'])\n"
)


def limited(soft: int, hard: int) -> tuple[str, str]:
    """The agent as a container runtime starts it that gives few files."""
    become = "os.execv(sys.executable, [sys.executable, '-m', 'trainjob.agent', *sys.argv[1:]])"
    return "-c", f"import os, resource, sys; resource.setrlimit(7, ({soft}, {hard})); {become}"


@pytest.mark.slow
@pytest.mark.parametrize("prefork", ["Never", "Always"])
def test_an_agent_raises_its_limit_and_its_ranks_have_the_one_that_it_was_given(tmp_path: Path, prefork: str) -> None:
    with Rig(tmp_path, script=SHOW, agents=1, entry=limited(256, 512), spec={"prefork": prefork}) as rig:
        rig.run(1)
        rig.wait_text(0, "rank (256, 512)")
        rig.wait_text(0, "child (256, 512)")
        assert resource.prlimit(rig.agents[0].process.pid, resource.RLIMIT_NOFILE) == (512, 512)
        assert rig.report(0)["warning"] is None


@pytest.mark.slow
def test_rank_0s_agent_warns_of_a_job_that_is_too_large_for_its_limit(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SHOW, agents=1, entry=limited(64, 130)) as rig:
        rig.run(1)
        rig.wait(lambda: "enough for about 0 workers, and this job has 1" in (rig.report(0)["warning"] or ""), "warned")
        rig.wait_text(0, "rank (64, 130)")


def test_the_ranks_of_an_agent_that_was_given_enough_are_started_as_ever() -> None:
    assert not open_files.is_raised()


@pytest.mark.parametrize(
    ("files", "processes", "enough"), [(1024, 1, 669), (1024, 8, 648), (65536, 8, 49032), (100, 1, 0)]
)
def test_how_many_workers_open_files_are_enough_for(files: int, processes: int, enough: int) -> None:
    assert open_files.workers_for(files, processes) == enough


def test_a_job_that_is_too_large_for_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    assert open_files.too_few(669, 1) is None
    told = open_files.too_few(1500, 1)
    assert told is not None and "1024 files" in told and "669 workers" in told and "1500" in told
    monkeypatch.setattr(resource, "getrlimit", lambda which: (-1, -1))
    assert open_files.too_few(1500, 1) is None and open_files.within_reach() == open_files.WANTED


def test_a_refused_raise_is_told_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, -1))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    told = open_files.raise_limit()
    assert told is not None and "1024" in told and "not allowed" in told
    assert not open_files.is_raised()
