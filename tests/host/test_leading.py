"""A leadership whose main loop is really blocked, or whose whole process stands still: it is kept, given up after a
while, or found out to be lost before the next write.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from support.leases import HandClock, LeaseLink, LeaseStore
from support.patience import HANG_S
from trainjob_operator.__main__ import EXIT_ERROR
from trainjob_operator.k8s import lease as rules
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.leading import STUCK_S, Keeper
from trainjob_operator.k8s.lease import Leadership, LeadershipLost

"""Only a test that fails waits so long."""


class Stand:
    """A keeper that leads; nothing of its time passes by itself."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.store = LeaseStore()
        self.link = LeaseLink(self.store)
        self.lost = threading.Event()
        self.words: list[str] = []
        self.keeper = Keeper(self._make, self._say, self.clock)

    async def _make(self, identity: str = "one") -> tuple[Leadership, LeaseLink]:
        return Leadership(self.link, "ns", "lease", identity, self.clock, random.Random(1)), self.link

    def until_lost(self, down_from: float = math.inf) -> int:
        """Time passes, and nothing else of the calling loop; how often the Lease was renewed before. From `down_from`
        on the API server does not answer.
        """
        renewed = 0
        while not self.lost.is_set() and self.clock.monotonic() < 2 * STUCK_S:
            self.link.down = self.clock.monotonic() >= down_from
            self.store.written.clear()
            self.clock.advance(rules.EVERY_S)
            while not self.lost.wait(0.001) and not self.store.written.is_set():
                pass
            renewed += self.store.holder == "one" and self.store.written.is_set()
        return renewed

    def _say(self, why: str) -> None:
        self.words.append(why)
        self.lost.set()


@asynccontextmanager
async def leading() -> AsyncIterator[Stand]:
    stand = Stand()
    await stand.keeper.acquire()
    try:
        yield stand
    finally:
        await stand.keeper.release()


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_a_blocked_loop_does_not_cost_the_leadership() -> None:
    async def story() -> None:
        async with leading() as stand:
            # No await from here on: nothing else of this loop has a turn.
            for _ in range(10):
                stand.store.written.clear()
                stand.clock.advance(rules.EVERY_S)
                assert stand.store.written.wait(HANG_S), "the Lease is not renewed while the loop is blocked"
            stand.keeper.check()
            assert not stand.words and stand.store.holder == "one"

    told(story)


def test_a_loop_that_is_stuck_for_good_costs_the_leadership() -> None:
    async def story() -> None:
        async with leading() as stand:
            # No await from here on.
            renewed = stand.until_lost()
            assert renewed == STUCK_S // rules.EVERY_S, "it is renewed until then, and no more"
            assert stand.words == ["the main loop has not run for 32 s"]

    told(story)


def test_a_leader_that_is_stuck_gives_the_lease_back_and_can_write_no_more() -> None:
    async def story() -> None:
        async with leading() as stand:
            # No await from here on.
            stand.until_lost()
            assert stand.store.lease is not None and stand.store.holder == ""
            assert stand.store.lease["spec"]["leaseDurationSeconds"] == 1, "another one need not wait"
            with pytest.raises(LeadershipLost, match="is not held"):
                stand.keeper.check()

    told(story)


def test_a_leader_that_is_stuck_ends_though_the_lease_cannot_be_given_back() -> None:
    async def story() -> None:
        async with leading() as stand:
            # No await from here on.
            stand.until_lost(down_from=STUCK_S)
            assert stand.words == ["the main loop has not run for 32 s"] and stand.store.holder == "one"

    told(story)


STUCK = """
import asyncio, logging, random, sys, threading
from support.leases import HandClock, LeaseLink, LeaseStore
from trainjob_operator.__main__ import _exit_now
from trainjob_operator.k8s import lease as rules
from trainjob_operator.k8s.leading import Keeper
from trainjob_operator.k8s.lease import Leadership
from trainjob_operator.process.logs import set_up

clock, store = HandClock(), LeaseStore()
link = LeaseLink(store)

async def make():
    return Leadership(link, "ns", "lease", "one", clock, random.Random(1)), link

def time_passes():
    while True:
        store.written.clear()
        clock.advance(rules.EVERY_S)
        store.written.wait()

async def main():
    await Keeper(make, _exit_now, clock).acquire()
    threading.Thread(target=time_passes, daemon=True).start()
    if sys.argv[1] == "True":
        logging.critical("x" * (1 << 20))  # nobody reads it
    threading.Event().wait()

set_up("text", "INFO", sys.stderr)
asyncio.run(main())
"""


@pytest.mark.parametrize("in_its_log", [False, True])
def test_a_process_whose_loop_is_stuck_for_good_ends(in_its_log: bool) -> None:
    command = [sys.executable, "-c", STUCK, str(in_its_log)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.wait(HANG_S) == EXIT_ERROR
        finally:
            process.kill()
        assert process.stderr is not None
        told = process.stderr.read()
        assert in_its_log or "the process ends: the main loop has not run for 32 s" in told


def test_a_loop_that_runs_keeps_the_leadership() -> None:
    async def story() -> None:
        async with leading() as stand:
            for _ in range(int(2 * STUCK_S // rules.EVERY_S)):
                stand.store.written.clear()
                stand.clock.advance(rules.EVERY_S)
                assert await asyncio.to_thread(stand.store.written.wait, HANG_S)
            assert not stand.words

    told(story)


def test_who_cannot_renew_is_told_while_the_loop_is_blocked() -> None:
    async def story() -> None:
        async with leading() as stand:
            stand.link.down = True
            stand.clock.advance(rules.RENEW_WITHIN_S)
            assert stand.lost.wait(HANG_S)
            assert "was not renewed for 10 s" in stand.words[0]

    told(story)


def test_a_process_that_stood_still_finds_out_before_its_next_write() -> None:
    async def story() -> None:
        async with leading() as stand:
            stands, goes_on = threading.Event(), threading.Event()

            async def stand_still() -> None:
                stands.set()
                goes_on.wait(HANG_S)

            stand.link.before = stand_still
            stand.clock.advance(rules.EVERY_S)
            assert stands.wait(HANG_S), "the thread that renews stands still, too"
            stand.clock.advance(rules.DURATION_S)
            with pytest.raises(LeadershipLost):
                stand.keeper.check()
            assert stand.words
            goes_on.set()

    told(story)


def test_after_the_release_nothing_is_written_and_nobody_is_ended() -> None:
    async def story() -> None:
        async with leading() as stand:
            await stand.keeper.release()
            with pytest.raises(LeadershipLost):
                stand.keeper.check()
            assert not stand.words and stand.store.holder == ""

    told(story)


def test_a_follower_that_is_told_to_stop_waits_no_longer() -> None:
    async def story() -> None:
        async with leading() as stand:
            follower = Keeper(lambda: stand._make("two"), stand._say, stand.clock)
            waiting = asyncio.create_task(follower.acquire())
            stand.store.written.clear()
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await follower.release()
            assert waiting.cancelled() and stand.store.holder == "one"

    told(story)


@pytest.mark.parametrize("open_", [True, False])
def test_the_fence_is_asked_before_a_request_that_may_change_something_goes_out(open_: bool, tmp_path: Any) -> None:
    class Shut(Exception):
        pass

    def fence() -> None:
        if not open_:
            raise Shut

    async def story() -> None:
        seen: list[str] = []

        async def note(request: web.Request) -> web.Response:
            await request.read()
            seen.append(request.method)
            return web.json_response({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", note)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        config = tmp_path / "kubeconfig"
        config.write_text(KUBECONFIG.format(port=runner.addresses[0][1]))
        api = await Api.connect(kubeconfig=str(config))
        api.fence = fence
        try:
            await api.get("/x")
            for change in (api.create, api.replace, api.merge_patch, api.delete):
                try:
                    await change("/x", {})
                except Shut:
                    assert not open_
            assert seen == (["GET", "POST", "PUT", "PATCH", "DELETE"] if open_ else ["GET"])
        finally:
            await api.close()
            await runner.cleanup()

    told(story)


KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
