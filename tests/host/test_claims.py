"""Which installation serves a namespace, in virtual time: one of them, the other says whom it leaves the jobs to."""

from __future__ import annotations

import asyncio

import pytest

from support.leases import LeaseLink, LeaseStore
from support.virtual_time import VirtualClock, passes, run_virtual
from trainjob_operator.cluster import Unavailable
from trainjob_operator.k8s import claims as rules
from trainjob_operator.k8s.claims import DURATION_S, LOOK_S, RELY_S, Claims


class Installation:
    """One that keeps its claims until it is killed; `wanted` are its namespaces with jobs."""

    def __init__(self, store: LeaseStore, name: str) -> None:
        self.link = LeaseLink(store)
        self.claims = Claims(self.link, name, VirtualClock())
        self.wanted = {"team"}
        self.task = asyncio.create_task(self.claims.keep(lambda: self.wanted))

    async def serves(self) -> bool:
        return await self.claims.served_by("team") is None


def test_the_first_serves_and_the_second_says_who_does() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "ops/trainjob"), Installation(store, "team/trainjob")
        assert not one.claims.holds("team")
        assert await one.serves() and one.claims.holds("team")
        why = await two.claims.served_by("team")
        assert why is not None and "ops/trainjob" in why and "team/trainjob leaves its TrainJobs alone" in why
        assert "trainjob-served-by" in why
        for _ in range(10):
            await passes(DURATION_S / 2)
            assert await one.serves() and not await two.serves()

    run_virtual(story())


def test_another_replica_of_the_same_installation_goes_on_at_once() -> None:
    async def story() -> None:
        store = LeaseStore()
        first = Installation(store, "ops/trainjob")
        assert await first.serves()
        first.task.cancel()
        assert await Installation(store, "ops/trainjob").serves()

    run_virtual(story())


def test_one_that_is_gone_is_followed_when_its_lease_has_run_out_and_never_before() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "one"), Installation(store, "two")
        assert await one.serves()
        one.task.cancel()
        at = asyncio.get_running_loop().time()
        while not await two.serves():
            await passes(1)
            assert not (two.claims.holds("team") and one.claims.holds("team"))
        waited = asyncio.get_running_loop().time() - at
        assert DURATION_S <= waited <= DURATION_S + LOOK_S + 1
        assert not await one.serves()

    run_virtual(story())


def test_a_holder_that_cannot_renew_stops_before_another_may_begin() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "one"), Installation(store, "two")
        assert await one.serves() and not await two.serves()
        one.link.down = True
        await passes(RELY_S - rules.EVERY_S)
        assert await one.serves()
        await passes(rules.EVERY_S)
        with pytest.raises(Unavailable):
            await one.serves()
        assert not await two.serves()

    run_virtual(story())


def test_a_namespace_without_jobs_is_given_back() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "one"), Installation(store, "two")
        assert await one.serves() and not await two.serves()
        one.wanted = set()
        await passes(rules.EVERY_S + LOOK_S + 1)
        assert await two.serves() and store.holder == "two"

    run_virtual(story())


def test_a_lease_that_a_person_deletes_goes_to_whoever_comes_first() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "one"), Installation(store, "two")
        assert await one.serves() and not await two.serves()
        store.lease = None
        await passes(rules.EVERY_S + LOOK_S)
        assert await two.serves() and not await one.serves()

    run_virtual(story())


def test_many_turns_at_once_ask_once() -> None:
    async def story() -> None:
        store = LeaseStore()
        one, two = Installation(store, "one"), Installation(store, "two")
        one.link.delay_s = two.link.delay_s = 1.0
        assert all(await asyncio.gather(*(one.serves() for _ in range(100))))
        at = asyncio.get_running_loop().time()
        assert not any(await asyncio.gather(*(two.serves() for _ in range(100))))
        assert asyncio.get_running_loop().time() - at == pytest.approx(2.0)

    run_virtual(story())
