"""Keeps a leadership apart from the work that it allows: the Lease is renewed in a thread with its own event loop.

Called by `__main__.py`. While a callback of the main loop takes its time, the Lease is renewed, and if it cannot be,
`lost` is told in this thread, which waits for nobody. A main loop that is stuck for good does no work and would keep
the Lease from others: it stamps a heartbeat, and the thread renews while that is young enough. Then it steps down: the
Lease is given back, so that nobody waits until it has run out, and the process ends. That is safe, because no write
goes out from before that on: `check` finds the Lease not held, whenever the main loop should wake. Should the whole
process stand still (it was stopped, its machine was), `check` finds out before the next write goes out. When the Lease
is whose is `lease.py`'s business.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from trainjob_operator.clock import Clock
from trainjob_operator.k8s.lease import Leadership, LeadershipLost

BEAT_S = 1.0
"""Between two heartbeats of the main loop."""
STUCK_S = 30.0
"""A main loop without a heartbeat for longer is stuck. Thousands of answers at once keep a loaded one for 2 to 10 s,
which must cost nothing; the liveness probe needs a minute, and not everybody has one.
"""
STOP_S = 5.0
"""For what the thread still has to do at the end."""


class Stuck(LeadershipLost):
    """The Lease is ours, and of no use to this process."""


T = TypeVar("T")
Lost = Callable[[str], object]
"""Told why, in whichever thread finds out; it ends the process."""


class Closes(Protocol):
    """What the Leadership was given to speak with the API server."""

    async def close(self) -> None: ...


Make = Callable[[], Awaitable[tuple[Leadership, Closes]]]
"""Called in the thread, so that the connections are of its loop."""


class Keeper:
    """`await acquire()`, then the Lease is kept until `await release()`. Made and awaited in the main loop."""

    def __init__(self, make: Make, lost: Lost, clock: Clock) -> None:
        self._make = make
        self._lost = lost
        self._clock = clock
        self._beaten_at = clock.monotonic()
        self._beating: asyncio.Task[None] | None = None
        self._leadership: Leadership | None = None
        self._api: Closes | None = None
        self._holding: asyncio.Task[None] | None = None
        self._stepping_down: asyncio.Task[None] | None = None
        self._released = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def acquire(self) -> int:
        """Wait until we lead; the transition number. Raises what making the connection raises."""
        self._beating = asyncio.create_task(self._beat(), name="heartbeat")
        return await self._there(self._acquire())

    def check(self) -> None:
        """We lead, and nobody else may yet; to be asked in any thread before anything is written. Else `lost` is told.
        Raises LeadershipLost.
        """
        assert self._leadership is not None, "check() comes after acquire()"
        try:
            self._leadership.check()
        except LeadershipLost as error:
            if not self._released:
                self._lost(str(error))
            raise

    async def release(self) -> None:
        """Let another lead, or stop waiting to; the thread ends. A second call does nothing."""
        if self._released:
            return
        self._released = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._there(self._release())
        except TimeoutError:
            pass  # the others wait until the Lease has run out
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, STOP_S)
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._beaten_at = self._clock.monotonic()
            await self._clock.sleep_until(self._beaten_at + BEAT_S)

    # --- In the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _acquire(self) -> int:
        self._leadership, self._api = await self._make()
        transition = await self._leadership.acquire()
        self._holding = asyncio.create_task(self._leadership.hold(self._look), name="lease")
        self._holding.add_done_callback(self._held)
        return transition

    def _look(self) -> None:
        """Raises Stuck."""
        stood_s = self._clock.monotonic() - self._beaten_at
        if stood_s > STUCK_S:
            raise Stuck(f"the main loop has not run for {stood_s:.0f} s")

    def _held(self, holding: asyncio.Task[None]) -> None:
        if holding.cancelled():
            return
        why = holding.exception()
        if isinstance(why, Stuck):
            self._stepping_down = asyncio.create_task(self._step_down(str(why)), name="step-down")
        else:
            self._lost(str(why))

    async def _step_down(self, why: str) -> None:
        """An API server that does not answer is not waited for longer than for one call."""
        assert self._leadership is not None, "it was held"
        try:
            await self._leadership.release()
        finally:
            self._lost(why)

    async def _release(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait({self._holding})
        if self._leadership is not None:
            await self._leadership.release()
        if self._api is not None:
            await self._api.close()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the thread; cancelled here, it is cancelled there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
