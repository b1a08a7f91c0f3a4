"""All jobs are looked at when the watch has listed them: in shares, those at work first, and nobody's news behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from support.clusters import INSTALLATION, NAMESPACE, manifest
from support.virtual_time import EPOCH, VirtualClock, run_virtual
from trainjob_operator.cluster import JobKey, Unavailable
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.reconciler import RECHECKS_A_SECOND, RECHECKS_AT_ONCE, Reconciler
from trainjob_operator.memory import MemoryCluster

MANY = 300


class Silent:
    """No agent says anything."""

    listening_since: datetime = EPOCH

    def listen(self, *_: Any) -> None:
        pass

    def views(self, key: JobKey) -> dict[str, Any]:
        return {}

    commit = forget = leave = listen


class Broken(MemoryCluster):
    """Its watch can be broken; the next one lists everything anew."""

    breaks: asyncio.Event

    async def watch(self) -> AsyncIterator[Any]:
        self.breaks = asyncio.Event()
        async for news in super().watch():
            yield news
            if self.breaks.is_set():
                raise Unavailable("410 Gone")


class Stand:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.cluster = Broken(self.clock)
        self.turns: list[tuple[float, str]] = []
        """When, and of which job."""
        self.reconciler = Reconciler(
            Means(cluster=self.cluster, agents=Silent(), clock=self.clock),
            INSTALLATION,
            hears=Hears(on_turn=lambda turn: self.turns.append((self.clock.monotonic(), turn.key[1]))),
        )

    def within(self, seconds: float, since: float = 0.0) -> list[str]:
        return [name for at, name in self.turns if since <= at < since + seconds]

    async def until_all_had_turns(self) -> None:
        await asyncio.sleep(MANY / RECHECKS_A_SECOND + 10.0)

    def gap(self) -> float:
        """The watch breaks with the next change; when."""
        self.turns.clear()
        self.cluster.breaks.set()
        self.cluster.add_pod(
            {"metadata": {"name": "stray", "namespace": NAMESPACE, "labels": {"trainjob.dev/job": "x"}}}
        )
        return self.clock.monotonic()


def with_jobs_at_rest(story: Callable[[Stand], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def running() -> AsyncIterator[Stand]:
        stand = Stand()
        for number in range(MANY):
            stand.cluster.create_job(manifest(f"rests-{number}", suspend=True))
        stand.cluster.create_job(manifest("works"))
        task = asyncio.create_task(stand.reconciler.run())
        try:
            yield stand
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def main() -> None:
        async with running() as stand:
            await story(stand)

    run_virtual(main())


def test_many_jobs_are_looked_at_in_shares_and_those_at_work_first() -> None:
    async def story(stand: Stand) -> None:
        await asyncio.sleep(0.5)
        assert "works" in [name for _, name in stand.turns[:RECHECKS_AT_ONCE]], "it is the last by name"
        rested = [name for name in stand.within(0.5) if name != "works"]
        assert len(rested) <= RECHECKS_AT_ONCE + 2 * RECHECKS_A_SECOND * 0.5, "each has two turns, the first one writes"
        await stand.until_all_had_turns()
        assert {name for _, name in stand.turns} == {"works", *(f"rests-{number}" for number in range(MANY))}

    with_jobs_at_rest(story)


def test_a_gap_of_the_watch_makes_no_burst_of_turns() -> None:
    async def story(stand: Stand) -> None:
        await stand.until_all_had_turns()
        begun = stand.gap()
        await stand.until_all_had_turns()
        first = min(at for at, _ in stand.turns if at > begun)
        for share in range(4):
            assert len(stand.within(0.5, first + 0.5 * share)) <= RECHECKS_AT_ONCE + RECHECKS_A_SECOND * 0.5 + 2
        assert len({name for _, name in stand.turns}) >= MANY

    with_jobs_at_rest(story)


def test_news_of_a_job_do_not_wait_for_its_share() -> None:
    async def story(stand: Stand) -> None:
        await stand.until_all_had_turns()
        stand.gap()
        await asyncio.sleep(0.6)
        last = sorted(f"rests-{number}" for number in range(MANY))[-1]
        assert last not in [name for _, name in stand.turns]
        stand.cluster.update_job_spec(NAMESPACE, last, {"suspend": False})
        await asyncio.sleep(0.1)
        assert last in [name for _, name in stand.turns]

    with_jobs_at_rest(story)


def test_a_notice_that_is_taken_back_while_nobody_watches_is_forgotten() -> None:
    """What a new watch tells of nodes is all that is to be known of them."""

    async def story(stand: Stand) -> None:
        where = PodView(slot=0, name="works-0", uid="uid", phase=PodPhase.RUNNING, node="node-1")

        def noticed() -> bool:
            return stand.reconciler._remembered.leaving.with_notices((where,))[0].notice is not None

        stand.cluster.add_node("node-1")
        stand.cluster.taint_node("node-1", "karpenter.sh/disrupted")
        await stand.until_all_had_turns()
        assert noticed()
        stand.gap()
        stand.cluster.remove_node("node-1")
        await stand.until_all_had_turns()
        assert not noticed()

    with_jobs_at_rest(story)
