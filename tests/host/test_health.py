"""When a replica is alive and ready, and the three pages it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from support.patience import HANG_S
from support.virtual_time import VirtualClock, passes, run_virtual
from trainjob_operator.clock import SystemClock
from trainjob_operator.process import health as limits
from trainjob_operator.process.health import Health, HealthServer
from trainjob_operator.process.metrics import Metrics


class _Turns:
    def __init__(self) -> None:
        self.oldest = 0.0

    def oldest_turn_s(self) -> float:
        return self.oldest


def in_virtual_time(story: Callable[[Health], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(Health(VirtualClock()))

    run_virtual(run())


def test_not_ready_before_the_api_server_was_reached_and_ready_as_a_follower() -> None:
    async def story(health: Health) -> None:
        assert health.why_not_ready() is not None and health.why_dead() is None
        health.api_answered()
        assert health.why_not_ready() is None
        # A follower watches nothing, and in a quiet cluster it calls nothing: silence is no trouble.
        await passes(3600)
        assert health.why_not_ready() is None
        assert health.watch_age_s() == 0.0

    in_virtual_time(story)


def test_an_api_server_that_fails_for_long_makes_it_unready_until_it_answers() -> None:
    async def story(health: Health) -> None:
        health.api_answered()
        health.api_failed()
        await passes(limits.API_LIMIT_S - 1)
        health.api_failed()
        assert health.why_not_ready() is None
        await passes(2)
        assert "has not answered" in str(health.why_not_ready())
        assert health.why_dead() is None
        health.api_answered()
        assert health.why_not_ready() is None

    in_virtual_time(story)


def test_a_leader_whose_watch_shows_no_life_is_not_ready() -> None:
    async def story(health: Health) -> None:
        health.api_answered()
        health.leads(_Turns())
        await passes(limits.WATCH_LIMIT_S + 1)
        assert "watch" in str(health.why_not_ready())
        health.watch_lives()
        assert health.why_not_ready() is None

    in_virtual_time(story)


def test_a_watch_that_cannot_see_jobs_is_not_ready_and_says_why() -> None:
    async def story(health: Health) -> None:
        health.api_answered()
        health.blind("the CustomResourceDefinition is gone")
        assert health.why_not_ready() == "the CustomResourceDefinition is gone" and health.why_dead() is None
        health.blind(None)
        assert health.why_not_ready() is None

    in_virtual_time(story)


def test_a_stuck_turn_is_no_life() -> None:
    async def story(health: Health) -> None:
        turns = _Turns()
        health.leads(turns)
        turns.oldest = limits.TURN_LIMIT_S - 1
        assert health.why_dead() is None
        turns.oldest = limits.TURN_LIMIT_S + 1
        assert "turn" in str(health.why_dead())

    in_virtual_time(story)


def test_a_blocked_loop_is_measured() -> None:
    async def run() -> float:
        health = Health(SystemClock())
        meter = asyncio.create_task(health.measure_lag())
        await asyncio.sleep(0.05)
        time.sleep(limits.LAG_EVERY_S + 0.3)  # noqa: ASYNC251 - this is what is measured
        # It may have measured before: a busy machine wakes this test late.
        until = time.monotonic() + HANG_S
        while health.lag_s <= 0.2 and time.monotonic() < until:  # noqa: ASYNC110 - the meter runs on this loop
            await asyncio.sleep(0)
        meter.cancel()
        return health.lag_s

    assert asyncio.run(run()) > 0.2


def test_a_late_loop_is_no_life() -> None:
    async def story(health: Health) -> None:
        health.lag_s = limits.LAG_LIMIT_S + 1
        assert "late" in str(health.why_dead())

    in_virtual_time(story)


def test_the_pages() -> None:
    async def run() -> None:
        health = Health(SystemClock())
        metrics = Metrics(health)
        server = HealthServer(health, metrics.exposition)
        port = await server.start("127.0.0.1", 0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:

            async def page(path: str) -> tuple[int, str]:
                async with client.get(path) as answer:
                    return answer.status, await answer.text()

            assert await page("/healthz") == (200, "ok\n")
            assert (await page("/readyz"))[0] == 503
            health.api_answered()
            assert await page("/readyz") == (200, "ok\n")
            metrics.call("operator", "GET", "/version", 200, 0.01)
            status, text = await page("/metrics")
            assert status == 200
            assert 'trainjob_api_calls_total{client="operator",code="200",resource="other",verb="GET"} 1.0' in text
            assert "trainjob_leader 0.0" in text
            assert (await page("/else"))[0] == 404
        await server.stop()

    asyncio.run(run())
