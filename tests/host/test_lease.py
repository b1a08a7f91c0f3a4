"""Leader election in virtual time: never two leaders, a quick hand-over, and nothing that hangs on wall clocks."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.leases import LeaseLink, LeaseStore
from support.virtual_time import VirtualClock, passes, run_virtual
from trainjob_operator.clock import SystemClock
from trainjob_operator.k8s import lease as rules
from trainjob_operator.k8s.lease import Leadership, LeadershipLost, first_transition


class Replica:
    """A process that leads when it can and ends when it has lost the Lease; `skew` sets its wall clock wrong."""

    def __init__(self, store: LeaseStore, name: str, skew: timedelta = timedelta(0)) -> None:
        class Clock(VirtualClock):
            def now(self) -> datetime:
                return super().now() + skew

        self.link = LeaseLink(store)
        self.name = name
        self.leads = False
        self.transition = 0
        self.lost: str | None = None
        self.leadership = Leadership(self.link, "ns", "lease", name, Clock(), random.Random(name))
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        self.transition = await self.leadership.acquire()
        self.leads = True
        try:
            await self.leadership.hold()
        except LeadershipLost as error:
            self.lost = str(error)
        finally:
            self.leads = False

    def killed(self) -> None:
        """SIGKILL: nothing is released."""
        self.task.cancel()

    async def told_to_stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.leadership.release()


def test_the_first_leads_and_the_second_waits() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(1)
        two = Replica(store, "two")
        await passes(300)
        assert one.leads and not two.leads
        assert one.transition >= 1
        assert store.holder == "one"
        one.killed()
        two.killed()

    run_virtual(story())


def test_a_released_lease_is_taken_within_seconds() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(1)
        two = Replica(store, "two")
        await passes(60)
        await one.told_to_stop()
        await passes(rules.EVERY_S)
        assert two.leads
        assert two.transition == one.transition + 1
        two.killed()

    run_virtual(story())


def test_a_dead_leaders_lease_is_taken_when_it_has_run_out_and_not_before() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(1)
        two = Replica(store, "two")
        await passes(60)
        one.killed()
        await passes(rules.DURATION_S - rules.EVERY_S - 0.1)
        assert not two.leads
        await passes(2 * rules.EVERY_S + 0.2)
        assert two.leads
        two.killed()

    run_virtual(story())


@pytest.mark.parametrize("trouble", ["down", "replies_lost"])
def test_a_cut_off_leader_ends_before_another_may_lead(trouble: str) -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(1)
        two = Replica(store, "two")
        await passes(60)
        setattr(one.link, trouble, True)
        while not two.leads:
            assert not (one.leads and two.leads)
            assert one.leads or one.lost, "it neither leads nor says why not"
            await passes(0.1)
        assert one.lost is not None
        two.killed()

    run_virtual(story())


def test_a_short_outage_costs_nothing() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(20)
        for _ in range(10):
            one.link.down = True
            await passes(rules.RENEW_WITHIN_S - rules.EVERY_S - rules.AGAIN_S - 0.1)
            one.link.down = False
            await passes(rules.EVERY_S + 0.2)
        assert one.leads
        one.killed()

    run_virtual(story())


def test_a_restarted_container_takes_its_own_lease_at_once_as_a_new_leadership() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(10)
        one.killed()
        again = Replica(store, "one")
        await passes(0.1)
        assert again.leads
        assert again.transition == one.transition + 1
        again.killed()

    run_virtual(story())


def test_two_processes_of_one_name_do_not_both_lead_for_long() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(10)
        twin = Replica(store, "one")
        await passes(rules.EVERY_S + 0.1)
        assert twin.leads
        assert not one.leads and one.lost is not None
        twin.killed()

    run_virtual(story())


def test_another_writer_of_the_lease_takes_nothing_away() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(10)
        for _ in range(20):
            touched = store.read()
            touched["metadata"]["labels"] = {"seen": "yes"}
            store.write(touched, new=False)
            await passes(3 * rules.EVERY_S)
        assert one.leads
        one.killed()

    run_virtual(story())


def test_a_deleted_lease_ends_the_leadership_and_the_next_number_is_not_lower() -> None:
    async def story() -> None:
        store = LeaseStore()
        one = Replica(store, "one")
        await passes(600)
        store.lease = None
        await passes(rules.EVERY_S + 0.1)
        assert one.lost is not None
        two = Replica(store, "two")
        await passes(1)
        assert two.leads
        assert two.transition >= one.transition
        two.killed()

    run_virtual(story())


def test_numbers_of_a_new_lease_grow_with_time_and_fit_the_api() -> None:
    at = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    assert first_transition(at) < first_transition(at + timedelta(minutes=2)) < 2**31


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_who_may_write_holds_the_lease_whoever_stood_still(seed: int) -> None:
    """Processes are stopped and go on at any moment; the first that runs then is not the one that renews."""

    async def story() -> None:
        rng = random.Random(seed)
        store, loop = LeaseStore(), asyncio.get_running_loop()
        replicas = [Replica(store, f"r{n}") for n in range(2)]
        until = {replica.name: 0.0 for replica in replicas}
        wrote = refused = 0

        async def runs(name: str) -> None:
            while until[name] > loop.time():
                await passes(until[name] - loop.time())

        async def write(replica: Replica) -> None:
            nonlocal wrote, refused
            while True:
                await runs(replica.name)
                try:
                    replica.leadership.check()
                except LeadershipLost:
                    refused += 1
                else:
                    wrote += 1
                    assert store.holder == replica.name, "it would have written beside another leader"
                await passes(0.1)

        for replica in replicas:
            replica.link.before = functools.partial(runs, replica.name)
        writers = [asyncio.create_task(write(replica)) for replica in replicas]
        for _ in range(20):
            for name in until:
                if rng.random() < 0.4:
                    until[name] = loop.time() + rng.uniform(0.1, 40.0)
            await passes(rng.uniform(0.1, 30.0))
            for writer in writers:
                if writer.done():
                    writer.result()
        assert wrote and refused
        for task in (*writers, *(replica.task for replica in replicas)):
            task.cancel()

    run_virtual(story())


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_never_two_leaders_whatever_the_network_does(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        store = LeaseStore()
        replicas = [Replica(store, f"r{n}", skew=timedelta(hours=rng.uniform(-48, 48))) for n in range(3)]
        for born in range(30):
            for replica in replicas:
                replica.link.down = rng.random() < 0.3
                replica.link.replies_lost = rng.random() < 0.1
                replica.link.delay_s = rng.choice([0.0, 0.0, 0.5, 3.0])
            ends = asyncio.get_running_loop().time() + rng.uniform(0.1, 20)
            while asyncio.get_running_loop().time() < ends:
                await passes(0.25)
                assert sum(replica.leads for replica in replicas) <= 1
            replicas = [r if r.lost is None else Replica(store, f"{r.name}-{born}") for r in replicas]
        # Once the faults stop, somebody leads.
        for replica in replicas:
            replica.link.down, replica.link.replies_lost, replica.link.delay_s = False, False, 0.0
        await passes(60)
        replicas += [Replica(store, "late")] if all(replica.lost for replica in replicas) else []
        await passes(60)
        assert sum(replica.leads for replica in replicas) == 1
        for replica in replicas:
            replica.killed()

    run_virtual(story())


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the machine has no clock that counts its sleep")
def test_a_machine_that_was_suspended_leads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still meanwhile; and here the other one while it is not."""
    real, began, slept_s = time.clock_gettime, time.clock_gettime(time.CLOCK_BOOTTIME), 0.0
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: began + slept_s if which == time.CLOCK_BOOTTIME else real(which)
    )

    async def story() -> None:
        nonlocal slept_s
        leadership = Leadership(LeaseLink(LeaseStore()), "ns", "lease", "one", SystemClock())
        await leadership.acquire()
        leadership.check()
        slept_s = rules.RENEW_WITHIN_S
        with pytest.raises(LeadershipLost, match="was not renewed for 10 s"):
            leadership.check()

    asyncio.run(story())
