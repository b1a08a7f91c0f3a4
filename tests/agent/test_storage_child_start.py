"""A machine that cannot start the storage child for a moment is an error of that moment, and nothing is given up."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.background import no_fault
from support.patience import HANG_S
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.storing import backoff
from trainjob.agent.storing import storage as storage_module
from trainjob.agent.storing.saving import Saving
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob.agent.wire.from_member import FromMember, Shared, ShareFailing
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
from trainjob.checkpoint.staging.area import Staging


def no_process(*_: Any, **__: Any) -> Any:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def no_socket(*_: Any, **__: Any) -> Any:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("module", "name", "fails"), [(subprocess, "Popen", no_process), (storage_module.socket, "socketpair", no_socket)]
)
def test_a_child_that_cannot_be_started_is_an_error_of_the_call_and_the_next_call_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fails: Any
) -> None:
    async def run() -> None:
        child = StorageChild(Reaper(asyncio.get_running_loop()), str(tmp_path / "store"), str(tmp_path))
        gc.collect()  # what earlier tests have left open, lest it go in between
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as broken:
            broken.setattr(module, name, fails)
            child.start()
            for _ in range(3):
                with pytest.raises(StorageError) as refused:
                    await child.call("probe", {})
                assert refused.value.kind == "child" and "cannot be started" in str(refused.value)
        assert len(os.listdir("/proc/self/fd")) == before
        assert await child.call("probe", {})
        await child.close(5)

    asyncio.run(run())


def test_a_child_that_ends_at_once_is_an_error_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        child = StorageChild(Reaper(asyncio.get_running_loop()), str(tmp_path / "store"), str(tmp_path))
        with monkeypatch.context() as broken:
            broken.setattr(storage_module, "CHILD", ("-c", "pass"))
            for _ in range(5):
                with pytest.raises(StorageError) as refused:
                    await child.call("probe", {})
                assert refused.value.kind == "child"
        assert await child.call("probe", {})
        await child.close(5)

    assert sys.executable
    asyncio.run(run())


def test_a_child_that_does_not_end_is_killed_and_gone_with_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a whole one takes longer to end than it is given."""
    monkeypatch.setattr(storage_module, "CHILD", ("-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(storage_module, "KILLED_S", HANG_S)

    async def run() -> int:
        child = StorageChild(Reaper(asyncio.get_running_loop()), str(tmp_path / "store"), str(tmp_path))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(child.call("probe", {}), 0.1)
        await child.close(0.1)
        return child._pid

    pid = asyncio.run(run())
    assert not os.path.exists(f"/proc/{pid}")


def test_what_is_to_be_stored_is_stored_once_the_child_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_S", 0.01)
    told: list[type] = []

    async def run() -> None:
        child = StorageChild(Reaper(asyncio.get_running_loop()), str(tmp_path / "store"), str(tmp_path))
        saving = Saving(Staging(str(tmp_path / "staging"), child.storage), child, lambda urgent: None, no_fault)
        failed = asyncio.Event()

        def to_leader(word: FromMember) -> None:
            told.append(type(word))
            failed.set()

        saving.to_leader = to_leader
        given = tmp_path / "given"
        given.mkdir()
        (given / "part").write_bytes(b"part")
        await saving.stage("1-1-1", [(0, str(given), False)], {})
        files = (NoteFile("part", 4, 0),)
        note = ReleaseNote(CheckpointId(1, 1, 1), None, 1, None, None, {}, 0.0, 1, 1, files).to_json()
        await saving.persist(note)
        with monkeypatch.context() as broken:
            broken.setattr(subprocess, "Popen", no_process)
            await saving.released(note)
            await asyncio.wait_for(failed.wait(), HANG_S)
        await asyncio.wait_for(saving.finished(), HANG_S)
        saving.close()
        await child.close(5)

    asyncio.run(run())
    assert told[0] is ShareFailing and told[-1] is Shared
    assert (tmp_path / "store/checkpoints/1-1-1/part").read_bytes() == b"part"
