"""Agents that go away together: nobody waits for the share of one that has left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.bare_site import bare_site
from support.patience import HANG_S
from support.virtual_time import run_virtual
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.attempts.member import Member
from trainjob.agent.wire.from_leader import Joined, Persist, Release, Resume
from trainjob.agent.wire.from_member import Bye, Join

NOTE = {
    "id": "1-1-1",
    "files": [["part-0", 1, 0], ["part-1", 1, 1]],
    "metrics": {},
    "step": 1,
    "time": 0.0,
    "position": 1,
}


def leader(site: Any) -> Leader:
    """Rank 0's agent of two workers, with a released checkpoint that lacks worker 1's share."""
    made = Leader(site, 1, 2, 1, lambda word: None)
    made._begin(Joined(1, False, (), "127.0.0.1", 1, None, Resume(None, {}, ())))
    assert made.commits is not None
    made.commits.released(NOTE, [0, 1])
    made.commits.shared(0, "1-1-1")
    return made


def site() -> Any:
    return bare_site(Storage(), Saving())


class Storage:
    """Takes everything."""

    async def call(self, op: str, request: Any, *_: Any) -> dict[str, Any]:
        return {}


class Saving:
    """Remembers what it was told to store."""

    def __init__(self) -> None:
        self.stored: list[str] = []

    async def persist(self, note: Any) -> None:
        return

    async def released(self, note: Any) -> None:
        self.stored.append(note["id"])


async def finished(made: Leader) -> bool:
    try:
        await asyncio.wait_for(made.finish(), HANG_S)
    except TimeoutError:
        return False
    finally:
        made.close()
    return True


@pytest.mark.parametrize(("left", "ends"), [(True, True), (False, False)], ids=["said good-bye", "still there"])
def test_the_end_waits_for_the_shares_of_those_who_are_there(left: bool, ends: bool) -> None:
    async def scene() -> bool:
        made = leader(site())
        if left:
            made.take(1, Bye())
        return await finished(made)

    assert run_virtual(scene()) is ends


def test_one_that_comes_back_is_waited_for_again() -> None:
    async def scene() -> bool:
        made = leader(site())
        made.take(1, Bye())
        made.take(1, Join("127.0.0.1:1", started=True))
        return await finished(made)

    assert run_virtual(scene()) is False


def test_what_is_persisted_is_stored_although_its_release_did_not_come() -> None:
    async def scene() -> tuple[list[str], list[str]]:
        here = site()
        told = asyncio.Event()
        member = Member(here, SimpleNamespace(joined=None), lambda word: told.set())
        member.take(Persist(4, NOTE))
        await asyncio.wait_for(told.wait(), HANG_S)
        await member.hand_in()
        first = list(here.saving.stored)
        member.take(Release(4, False))
        await asyncio.sleep(0)
        member.close()
        return first, here.saving.stored

    assert asyncio.run(scene()) == (["1-1-1"], ["1-1-1"])
