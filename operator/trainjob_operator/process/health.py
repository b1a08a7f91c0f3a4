"""Is this replica alive and of use? Answers kubelet and Prometheus: /healthz, /readyz and /metrics over plain HTTP.

`__main__.py` makes a `Health`, lets the parts tell it what happens, and serves it with `HealthServer`. Alive: the event
loop turns and no turn is stuck; else a restart helps. Ready: the API server answers and, where this replica leads, the
watch lives. Readiness does not depend on leadership: a rollout would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from trainjob_operator.clock import Clock

PATH_HEALTHZ = "/healthz"
"""200 while the replica is alive: its event loop turns and no turn is stuck. Else 503 with the reason, and a restart
helps.
"""
PATH_READYZ = "/readyz"
"""200 while the replica is of use: it is alive, the API server answers and, where it leads, the watch lives. Else
503 with the reason. Followers are ready too.
"""
PATH_METRICS = "/metrics"
"""The metrics, for Prometheus."""

LAG_EVERY_S = 0.5
LAG_LIMIT_S = 5.0
"""An event loop that wakes so late is not alive."""
TURN_LIMIT_S = 180.0
"""A turn that still runs after this is stuck: it should have been given up long before (reconciler.TURN_TIMEOUT_S)."""
API_LIMIT_S = 10.0
"""So long the API server may fail to answer before the replica is not ready."""
WATCH_LIMIT_S = 150.0
"""A watch is opened anew each minute; two misses and it is not alive."""
SHUTDOWN_S = 1.0


class Turns(Protocol):
    """What is asked of the reconciler."""

    def oldest_turn_s(self) -> float:
        """For how long the longest running turn has run; 0: none runs."""
        ...


class Health:
    """What the parts of the process said last, judged by one monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self.lag_s = 0.0
        """How late the event loop last woke up."""
        self._clock = clock
        self._reached = False
        self._failing_since: float | None = None
        self._watched_at: float | None = None
        self._blind: str | None = None
        self._turns: Turns | None = None

    # --- Told by the parts --------------------------------------------------------------------------------------------

    def api_answered(self) -> None:
        """The API server answered a call, whatever it said."""
        self._reached, self._failing_since = True, None

    def api_failed(self) -> None:
        """A call got no answer, or 5xx."""
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()

    def watch_lives(self) -> None:
        """The watch begins, was opened, or brought something."""
        self._watched_at = self._clock.monotonic()

    def blind(self, why: str | None) -> None:
        """The watch cannot see jobs now: why; None: it can again."""
        self._blind = why

    def leads(self, turns: Turns) -> None:
        """This replica takes turns now."""
        self._turns = turns
        self.watch_lives()

    async def measure_lag(self) -> None:
        """Runs for ever beside the work."""
        while True:
            due = self._clock.monotonic() + LAG_EVERY_S
            await self._clock.sleep_until(due)
            self.lag_s = max(0.0, self._clock.monotonic() - due)

    # --- Asked by the server ------------------------------------------------------------------------------------------

    def watch_age_s(self) -> float:
        """Seconds since the watch last showed life; 0 for a follower."""
        return 0.0 if self._watched_at is None else self._clock.monotonic() - self._watched_at

    def why_dead(self) -> str | None:
        """One sentence, or None: alive."""
        if self.lag_s > LAG_LIMIT_S:
            return f"the event loop is {self.lag_s:.1f} s late"
        if self._turns is not None and self._turns.oldest_turn_s() > TURN_LIMIT_S:
            return f"a turn has run for {self._turns.oldest_turn_s():.0f} s"
        return None

    def why_not_ready(self) -> str | None:
        """One sentence, or None: ready."""
        if not self._reached:
            return "the API server was not reached yet"
        if self._failing_since is not None and self._clock.monotonic() - self._failing_since > API_LIMIT_S:
            return f"the API server has not answered for {self._clock.monotonic() - self._failing_since:.0f} s"
        if self._blind is not None:
            return self._blind
        if self.watch_age_s() > WATCH_LIMIT_S:
            return f"the watch has shown no life for {self.watch_age_s():.0f} s"
        return self.why_dead()


class HealthServer:
    """The three routes on one port."""

    def __init__(self, health: Health, exposition: Callable[[], tuple[bytes, str]]) -> None:
        self._health = health
        self._exposition = exposition
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port (0: any free one was picked). Raises OSError when it is taken."""
        app = web.Application()
        app.router.add_get(PATH_HEALTHZ, self._healthz)
        app.router.add_get(PATH_READYZ, self._readyz)
        app.router.add_get(PATH_METRICS, self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError:
            await self.stop()
            raise
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the socket."""
        if self._runner is not None:
            async with asyncio.timeout(2 * SHUTDOWN_S):
                await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, request: web.Request) -> web.Response:
        return _verdict(self._health.why_dead())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _verdict(self._health.why_not_ready())

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})


def _verdict(why_not: str | None) -> web.Response:
    return web.Response(text="ok\n") if why_not is None else web.Response(status=503, text=f"{why_not}\n")
