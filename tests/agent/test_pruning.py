"""The staging area stays small, and never at the cost of what was just promised."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.background import no_fault
from support.bare_site import bare_site
from support.patience import HANG_S
from trainjob.agent.attempts.attempt import Attempt
from trainjob.agent.site import Site
from trainjob.agent.storing.saving import Saving
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.staging.area import Staging
from trainjob_api import contract


def note(index: int) -> dict[str, Any]:
    blank = ReleaseNote(CheckpointId(1, 1, index), None, index, None, None, {}, 0.0, 1, index, ())
    return blank.to_json()


async def persisted(saving: Saving, index: int) -> dict[str, Any]:
    """As the leader has it done: staged, then the note."""
    await saving.stage(f"1-1-{index}", [], {0: b"state"})
    await saving.persist(note(index))
    return note(index)


async def held(saving: Saving) -> list[str]:
    return [one.id for one in await saving.shown()]


def test_only_the_newest_stays_without_storage(tmp_path: Path) -> None:
    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        for index in (1, 2, 3):
            await saving.released(await persisted(saving, index))
        assert await held(saving) == ["1-1-3"]
        saving.close()

    asyncio.run(run())


def test_a_release_while_pruning_waits_for_its_turn_is_not_pruned(tmp_path: Path) -> None:
    """Seen once in 200 kills: the prune of an older commit removed the checkpoint that had been released since."""

    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        await saving.released(await persisted(saving, 1))
        second = await persisted(saving, 2)
        turn = threading.Event()
        busy = asyncio.ensure_future(saving._in_thread(turn.wait, 10))
        older = asyncio.ensure_future(saving.committed("1-1-0"))
        await asyncio.sleep(0)
        newer = asyncio.ensure_future(saving.released(second))
        await asyncio.sleep(0)
        turn.set()
        await asyncio.gather(busy, older, newer)
        assert await held(saving) == ["1-1-2"]
        saving.close()

    asyncio.run(run())


def test_what_was_persisted_but_never_released_stays_until_a_join_has_chosen(tmp_path: Path) -> None:
    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        await saving.released(await persisted(saving, 1))
        await persisted(saving, 2)
        assert await held(saving) == ["1-1-2", "1-1-1"]
        await saving.committed("1-1-1")
        assert await held(saving) == ["1-1-2", "1-1-1"], "the others may not have its note: the join decides"
        await saving.adopt([], "1-1-1")
        assert await held(saving) == ["1-1-1"]
        saving.close()

    asyncio.run(run())


def test_what_a_join_tells_does_not_wait_for_a_copy_of_an_attempt_that_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        await saving.released(await persisted(saving, 1))
        turn = threading.Event()
        copying = asyncio.ensure_future(saving._in_thread(turn.wait, HANG_S))
        await asyncio.sleep(0)
        assert await held(saving) == ["1-1-1"] and not copying.done()
        turn.set()
        await copying
        saving.close()

    asyncio.run(run())


def test_what_ranks_of_a_lost_attempt_saved_and_nobody_released_goes_with_the_next_join(tmp_path: Path) -> None:
    """Each worker that is lost while all save leaves one on every other worker."""

    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        await saving.released(await persisted(saving, 1))
        for attempt in (1, 2, 3):
            await saving.stage(f"1-{attempt}-2", [], {0: b"state"})
            await saving.adopt([], "1-1-1")
            assert os.listdir(tmp_path) == ["1-1-1"]
        assert await held(saving) == ["1-1-1"]
        saving.close()

    asyncio.run(run())


def test_what_is_staged_for_an_attempt_that_is_over_is_given_up_and_the_next_ones_is_not(tmp_path: Path) -> None:
    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        turn = threading.Event()
        busy = asyncio.ensure_future(saving._in_thread(turn.wait, 10))
        old = asyncio.ensure_future(saving.stage("1-1-1", [], {0: b"state"}))
        await asyncio.sleep(0)
        saving.cancel_staging()
        new = asyncio.ensure_future(saving.stage("1-2-1", [], {0: b"state"}))
        await asyncio.sleep(0)
        turn.set()
        await busy
        with pytest.raises(StagingError, match="its attempt is over"):
            await old
        await new
        assert os.listdir(tmp_path) == ["1-2-1"]
        saving.close()

    asyncio.run(run())


def test_with_its_attempt_all_that_is_being_staged_is_given_up(tmp_path: Path) -> None:
    """The next one would wait for a copy of gigabytes that nobody wants."""

    async def run() -> None:
        saving = Saving(Staging(str(tmp_path)), None, lambda urgent: None, no_fault)
        order = {"attempt": 1, "secret": "s", "leader": "127.0.0.1:1", "index": 0, "workers": 1, "processes": 1}
        attempt = Attempt(site_of(saving, tmp_path), None, None, order, None)  # type: ignore[arg-type]
        turn = threading.Event()
        busy = asyncio.ensure_future(saving._in_thread(turn.wait, HANG_S))
        staging = asyncio.ensure_future(saving.stage("1-1-1", [], {0: b"state"}))
        await asyncio.sleep(0)
        await attempt.stop(contract.END_STOPPED, 0)
        turn.set()
        await busy
        with pytest.raises(StagingError, match="its attempt is over"):
            await staging
        attempt.close()
        saving.close()

    asyncio.run(run())


def site_of(saving: Saving, folder: Path) -> Site:
    bare = bare_site(None, saving)
    config = SimpleNamespace(**vars(bare.config), work_dir=str(folder / "work"), shared_tmp=None, pod_uid="uid")
    reaper: Any = SimpleNamespace()
    fields = {name: value for name, value in vars(bare).items() if name in Site.__dataclass_fields__}
    return Site(**{**fields, "config": config, "reaper": reaper, "socket_folder": str(folder)})
