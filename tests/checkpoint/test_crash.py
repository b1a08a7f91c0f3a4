"""Processes killed at every single file operation of share, commit, retain and claim. (Over S3: test_s3_crash;
others that act in between: test_zombies.)
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from support.checkpoint import Job, cut_off
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.path_store import PathStore


@pytest.mark.parametrize("after", [False, True])
def test_a_save_that_is_killed_anywhere_leaves_the_old_or_the_new_checkpoint_and_can_be_finished(
    tmp_path: Path, after: bool
) -> None:
    for at in itertools.count(1):
        job = Job(tmp_path / str(at))
        job.save("1-1-1")
        job.stage("1-1-2")
        killed = cut_off(lambda job=job: job.save("1-1-2"), at, after=after)
        assert job.good() in (["1-1-1"], ["1-1-1", "1-1-2"])
        job.save("1-1-2")
        assert job.good() == ["1-1-1", "1-1-2"]
        assert not [
            p
            for p in job.folder.rglob(".trainjob-tmp-*")
            if "checkpoints" in p.parts and p.parent.name != "checkpoints"
        ]
        if not killed:
            assert at > 20
            break


@pytest.mark.parametrize("after", [False, True])
def test_a_retention_that_is_killed_anywhere_keeps_what_it_must_and_can_be_finished(
    tmp_path: Path, after: bool
) -> None:
    def retain(job: Job) -> None:
        Retainer(job.store, 1).retain(Policy(keep=2), {CheckpointId(1, 1, 2)})

    for at in itertools.count(1):
        job = Job(tmp_path / str(at))
        for id_ in ("1-1-1", "1-1-2", "1-1-3", "1-1-4", "1-1-5"):
            job.save(id_)
        killed = cut_off(lambda job=job: retain(job), at, after=after)
        assert set(job.good()) >= {"1-1-2", "1-1-4", "1-1-5"}
        retain(job)
        retain(job)
        assert job.good() == ["1-1-2", "1-1-4", "1-1-5"]
        assert job.folders() == ["1-1-2", "1-1-4", "1-1-5"]
        if not killed:
            assert at > 10
            break


@pytest.mark.parametrize("after", [False, True])
def test_a_claim_that_is_killed_anywhere_is_made_once(tmp_path: Path, after: bool) -> None:
    for at in itertools.count(1):
        store = PathStore(str(tmp_path / str(at)))
        killed = cut_off(lambda store=store: settle(store, "uid-1", "auto", []), at, after=after)
        assert settle(store, "uid-1", "auto", []).run == 1
        assert settle(store, "uid-2", "auto", []).run == 2
        assert runs.numbers(store) == [1, 2]
        if not killed:
            break


def test_everything_is_on_disk_before_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses power: bytes before their name, names before the record that speaks of them."""
    synced: list[str] = []
    published: list[tuple[str, set[str]]] = []
    fsync, link = os.fsync, os.link

    def record_fsync(fd: int) -> None:
        fsync(fd)
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    def record_link(source: str, target: str) -> None:
        assert source in synced
        link(source, target)
        published.append((target, set(synced)))
        synced[:] = [path for path in synced if path != os.path.dirname(target)]

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    job = Job(tmp_path)
    job.save("1-1-1")
    assert len(published) == 3 + 2 + 1
    for number, (target, before) in enumerate(published):
        if target.endswith(".json"):
            assert {os.path.dirname(earlier) for earlier, _ in published[:number]} <= before
    assert os.path.dirname(published[-1][0]) in synced


def test_two_attempts_that_store_one_checkpoint_at_once_make_one_whole_one(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for index in range(1, 11):
        id_ = f"1-1-{index}"
        job.stage(id_)
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    job.save(id_)
                    code = 0
                finally:
                    os._exit(code)
            pids.append(pid)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0]
    assert job.good() == [f"1-1-{index}" for index in range(1, 11)]


def test_many_claimers_at_once_take_different_runs(tmp_path: Path) -> None:
    store = PathStore(str(tmp_path))
    pids = []
    for n in range(6):
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = settle(store, f"uid-{n // 2}", "auto", []).run
            finally:
                os._exit(code)
        pids.append(pid)
    got = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert got[0::2] == got[1::2]
    assert sorted(got[0::2]) == [1, 2, 3]
    assert stored.ids(store) == []
