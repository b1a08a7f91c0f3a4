"""When upload trouble is final: rank 0's agent in virtual time, and what counts as progress of a share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import virtual_time
from support.background import no_fault
from trainjob.agent.barriers.barrier import Admit, Barrier, Fail, Release
from trainjob.agent.barriers.calls import Arrival
from trainjob.agent.committing import uploads
from trainjob.agent.committing.commits import HOPELESS_TRIES, Commits
from trainjob.agent.storing.saving import Saving
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire.from_leader import Drop
from trainjob.checkpoint.staging.area import Staging
from trainjob_api import contract

NOTE = {"id": "1-1-1", "files": [["part-0", 10, 0]], "metrics": {}, "step": 1, "time": 0.0, "position": 1}


class Storage:
    """Says what it is told to say."""

    def __init__(self, error: StorageError | None) -> None:
        self.error = error
        self.calls: list[str] = []
        self.moved = 0
        self.storage = "/store"

    async def call(self, op: str, request: Any, on_progress: Any = None) -> dict[str, Any]:
        self.calls.append(op)
        if self.error is not None:
            raise self.error
        return {"committed": True, "count": 1, "deleted": [], "warnings": []}


def commits(policy: str, error: StorageError | None = None) -> tuple[Commits, list[Any]]:
    told: list[Any] = []
    spec = SimpleNamespace(
        storage="/store", keep=None, score_attribute=None, score_order="max", on_upload_failure=policy
    )
    site: Any = SimpleNamespace(
        config=SimpleNamespace(spec=spec),
        console=SimpleNamespace(say=lambda text: None),
        on_fault=no_fault,
        storage=Storage(error),
        changed=lambda at_once: None,
        warn=lambda text: None,
        uri=lambda id_: id_,
    )
    made = Commits(site, lambda index, message: told.append(message), 1, 1, ())
    made.released(NOTE, [0])
    return made, told


def test_what_storage_said_stands_until_it_takes_a_checkpoint_again() -> None:
    """A checkpoint that is dropped meanwhile does not take the cause's place; the line comes once for the job."""

    async def story() -> None:
        made, told = commits(contract.CONTINUE)
        refused: list[str] = []
        said: list[str] = []
        made._site.console.say = said.append  # type: ignore[method-assign]
        made.on_trouble = lambda id_, message: refused.append(f"{id_}: {message}")
        made.share_failing("1-1-1", "full", "worker 0: No space left on device.")
        made.released({**NOTE, "id": "1-1-2"}, [0])
        made.admit(lambda: None)
        await asyncio.sleep(uploads.STALL_S + 1)
        assert [each.id for each in told if isinstance(each, Drop)] == ["1-1-2"]
        assert made.trouble == (
            "Checkpoint 1-1-1 cannot be stored: worker 0: No space left on device. Meanwhile checkpoint 1-1-2 was "
            "dropped: storage has taken no byte for 30 s"
        )
        assert refused[-1].startswith("1-1-2: ") and refused[-1].endswith("No space left on device.")
        assert said[1:] == ["checkpoint 1-1-2 is not stored: storage has taken no byte for 30 s"]
        made.shared(0, "1-1-1")
        await asyncio.sleep(1)
        assert made.trouble is None

    virtual_time.run_virtual(story())


@pytest.mark.parametrize("policy", [contract.CONTINUE, contract.FAIL])
def test_trouble_without_a_new_byte_is_final_after_a_while_if_the_job_says_so(policy: str) -> None:
    async def story() -> None:
        made, _ = commits(policy)
        failed: list[str] = []
        made.on_failed = failed.append
        made.share_failing("1-1-1", "unreadable", "the store does not answer")
        assert made.trouble == "Checkpoint 1-1-1 cannot be stored: the store does not answer" and not failed
        await asyncio.sleep(uploads.STALL_S - 1)
        made.moved(0, 5)
        await asyncio.sleep(uploads.STALL_S - 1)
        made.share_failing("1-1-1", "unreadable", "the store does not answer")
        assert not failed, "a byte had moved"
        await asyncio.sleep(2)
        made.share_failing("1-1-1", "unreadable", "the store does not answer")
        assert len(failed) == (policy == contract.FAIL)
        assert made.on_their_way == ["1-1-1"], "it is tried on"
        made.shared(0, "1-1-1")
        await asyncio.sleep(1)
        assert made.trouble is None

    virtual_time.run_virtual(story())


def test_a_commit_that_cannot_succeed_is_given_up_after_a_few_tries() -> None:
    async def story() -> None:
        made, told = commits(
            contract.CONTINUE, StorageError("lost", "model.pt was stored with 10 bytes, found no such file")
        )
        made.shared(0, "1-1-1")
        await asyncio.sleep(60)
        assert made._site.storage.calls == ["commit"] * HOPELESS_TRIES  # type: ignore[union-attr]
        assert [type(word) for word in told] == [Drop] and made.drained
        assert made.trouble is not None and "was dropped: model.pt was stored" in made.trouble and made.failed is None

    virtual_time.run_virtual(story())


def test_a_commit_that_is_refused_for_now_is_tried_for_ever() -> None:
    async def story() -> None:
        made, told = commits(contract.CONTINUE, StorageError("full", "the file system is full"))
        made.shared(0, "1-1-1")
        await asyncio.sleep(3600)
        assert len(made._site.storage.calls) > 300 and not told and not made.drained  # type: ignore[union-attr]
        made.close()

    virtual_time.run_virtual(story())


def test_bytes_that_are_moved_again_are_no_progress(tmp_path: Path) -> None:
    """A disk that fills up half-way takes the first half of a file with each try."""

    async def story() -> None:
        storage: Any = Storage(None)
        saving = Saving(Staging(str(tmp_path)), storage, lambda drained: None, no_fault)
        told: list[int] = []
        saving.to_leader = lambda word: told.append(word.bytes)
        for share, progress in (
            (("1-1-1", 0), (50, 100)),
            (("1-1-1", 0), (50, 100)),
            (("1-1-1", 0), (50, 120)),
            (("1-1-2", 0), (30,)),
        ):
            if saving._furthest[0] != share:
                saving._furthest = (share, 0)
            for total in progress:
                saving._moved(1000, 1000 + total)
        assert told == [50, 100, 120, 150] and saving.moved == 150
        saving.close()

    virtual_time.run_virtual(story())


def test_a_refused_report_fails_for_all_and_barriers_go_on() -> None:
    barrier = Barrier(2, range(2), 60.0)
    assert barrier.refuse_reports("storage is gone") == []

    def both(n: int, kind: str, mode: str | None = None) -> Any:
        barrier.arrive(0.0, Arrival(0, n, kind, mode=mode))
        return barrier.arrive(0.0, Arrival(1, n, kind, mode=mode))[0]

    failed = both(1, contract.KIND_REPORT)
    assert isinstance(failed, Fail) and (failed.reason, failed.ranks, failed.message) == (
        contract.FAIL_STORAGE,
        (0, 1),
        "storage is gone",
    )
    assert isinstance(both(2, contract.KIND_BARRIER), Release)
    assert isinstance(both(3, contract.KIND_REPORT, contract.UPLOAD_ASYNC), Fail)
    waiting = Barrier(1, range(1), 60.0)
    assert waiting.arrive(0.0, Arrival(0, 1, contract.KIND_REPORT, mode=contract.UPLOAD_ASYNC)) == [Admit(1)]
    (failed,) = waiting.refuse_reports("storage is gone")
    assert isinstance(failed, Fail), "it waited for a place"
