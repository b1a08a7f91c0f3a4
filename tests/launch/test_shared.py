"""Which workers of a job are started of the parent that it has for all, and when it has none (any more)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch.local.kept import line, making, shared
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.kept.shared import Shared
from trainjob.launch.local.process import Launch
from trainjob_api.v1alpha1 import TrainJob


class Process:
    """One that was started."""

    killed = 0

    def kill(self) -> None:
        Process.killed += 1

    def wait(self) -> int:
        return -9


class Taken(list[Launch]):
    """Which workers were; what is raised instead of taking the next."""

    error: Exception | None = None
    begun = 0


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    found = Taken()
    Process.killed = 0

    def start(*_: Any, **__: Any) -> tuple[Process, Door]:
        found.begun += 1
        return Process(), Door("/nowhere", "a.sock")

    def take(self: line.Taking, door: Door, patience_s: float, launch: Launch, output: int) -> str:
        if found.error is not None:
            raise found.error
        found.append(launch)
        return "child"

    monkeypatch.setattr(making, "start", start)
    monkeypatch.setattr(line, "tell", lambda *_: None)
    monkeypatch.setattr(line.Taking, "taken", take)
    return found


def job(workers: int = 2, **spec: Any) -> TrainJob:
    container = {"name": "trainer", "image": "x"}
    return TrainJob.model_validate(
        {
            "apiVersion": "trainjob.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "a"},
            "spec": {"workers": workers, "template": {"spec": {"containers": [container]}}, **spec},
        }
    )


def of(folder: Path, said: list[str] | None = None, **spec: Any) -> Shared:
    (folder / "train.py").write_text("import torch\nfrom torch import optim\n")
    say = [].append if said is None else said.append
    return Shared(job(**{"runtime": {"prefork": "Always"}, **spec}), str(folder), "", -1, say)


def worker(folder: Path, **environ: str) -> Launch:
    words = [sys.executable, "-m", "agent", "--", sys.executable, str(folder / "train.py")]
    return Launch(
        words=words, environment={"PATH": os.environ["PATH"], **environ}, working_dir=str(folder), inherited=()
    )


def test_all_workers_with_one_environment_have_one(tmp_path: Path, taken: Taken) -> None:
    it = of(tmp_path)
    workers = [worker(tmp_path, TRAINJOB_POD_NAME=name, RANK=name) for name in ("0", "1")]
    assert [it.take(each, os.dup(1)) for each in workers] == ["child", "child"]
    assert (taken, taken.begun) == (workers, 1)


def test_a_worker_with_a_variable_of_its_own_has_not(tmp_path: Path, taken: Taken) -> None:
    it = of(tmp_path)
    assert it.take(worker(tmp_path, KNOB="1"), os.dup(1)) == "child"
    assert it.take(worker(tmp_path, KNOB="2"), os.dup(1)) is None
    assert it.take(worker(tmp_path, KNOB="1"), os.dup(1)) == "child"
    assert (taken.begun, Process.killed) == (1, 0)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ConnectionResetError("it is gone"), "what was imported started threads"),
        (line.NoAnswer("it does not answer"), "it does not answer"),
        (ValueError("odd"), "odd"),
    ],
)
def test_one_that_is_gone_or_silent_is_asked_once(tmp_path: Path, taken: Taken, error: Exception, why: str) -> None:
    said: list[str] = []
    it = of(tmp_path, said)
    (tmp_path / "shared.log").write_text("imports\nwhat was imported started threads\n")
    taken.error = error
    assert it.take(worker(tmp_path), os.dup(1)) is None
    assert Process.killed == 1
    taken.error = None
    assert it.take(worker(tmp_path), os.dup(1)) is None
    assert taken.begun == 1
    assert len(said) == 1 and said[0].endswith(why) and "each worker imports for itself" in said[0]


def test_who_gives_up_leaves_it_to_the_others(tmp_path: Path, taken: Taken) -> None:
    said: list[str] = []
    it, gone = of(tmp_path, said), worker(tmp_path)
    it.give_up(gone)
    taken.error = ConnectionAbortedError("nobody waits for it any more")
    assert it.take(gone, os.dup(1)) is None
    taken.error = None
    assert it.take(worker(tmp_path), os.dup(1)) == "child"
    assert Process.killed == 0 and not said


def test_it_is_begun_for_ranks_that_are_forks_alone(tmp_path: Path, taken: Taken) -> None:
    it = of(tmp_path, runtime={"prefork": "Never"})
    assert it.take(worker(tmp_path), os.dup(1)) is None and taken.begun == 0


def test_after_the_jobs_end_there_is_none(tmp_path: Path, taken: Taken) -> None:
    it = of(tmp_path)
    assert it.take(worker(tmp_path), os.dup(1)) == "child"
    it.close()
    assert Process.killed == 1
    assert it.take(worker(tmp_path), os.dup(1)) is None


def test_one_that_cannot_be_started_is_not_tried_again(
    tmp_path: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def full(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise OSError("No space left on device")

    monkeypatch.setattr(making, "start", full)
    said: list[str] = []
    it = of(tmp_path, said)
    assert [it.take(worker(tmp_path), os.dup(1)) for _ in range(2)] == [None, None]
    assert len(tried) == 1
    assert len(said) == 1 and said[0].endswith("No space left on device")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")
@pytest.mark.parametrize(
    ("spec", "one"),
    [
        ({"workers": 1}, False),
        ({"workers": 2}, True),
        ({"workers": 1, "elastic": {"minWorkers": 1, "maxWorkers": 2}}, True),
        ({"workers": 1, "runtime": {"spareWorkers": 1}}, True),
    ],
)
def test_it_is_for_more_than_one_worker(spec: dict[str, Any], one: bool) -> None:
    assert shared.Shared.is_for(job(**spec)) is one
