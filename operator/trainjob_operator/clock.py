"""Time as the shell sees it: the machine's wall clock, a steady one for the rules, and a monotonic one for waiting.

Given to the work queue, the coordinator, the reconciler and the in-process cluster, so that tests and the simulator run
in virtual time. The core never sees a clock: it is handed `now`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

from trainjob_operator.steady_time import SteadyTime


def _elapsed() -> float:
    """Seconds that nobody sets; those of a suspended machine count."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock(Protocol):
    """What the shell asks of time."""

    def now(self) -> datetime:
        """The machine's wall clock, UTC; it may step. For what others made or read: tokens, certificates, leases."""
        ...

    def steady(self) -> datetime:
        """Wall clock that never steps while this process lives (`steady_time.py`), UTC. For the rules, and for all that
        is held against their moments.
        """
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, those of a suspended machine too; never goes back."""
        ...

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._steady = SteadyTime(self.now, _elapsed)

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.now(UTC)

    def steady(self) -> datetime:
        """One for all who share this clock."""
        return self._steady.now()

    def monotonic(self) -> float:
        """As the steady one: who slept with the machine must know that leases and deadlines ran out meanwhile."""
        return _elapsed()

    async def sleep_until(self, deadline: float) -> None:
        """Sleep on the running loop. Its timers stand still while the machine is suspended: then it returns late."""
        await asyncio.sleep(max(0.0, deadline - _elapsed()))


async def wait_until(clock: Clock, deadline: float | None, happening: Coroutine[Any, Any, object]) -> None:
    """Return when `happening` is over or the deadline has come (None: there is none); what is left is cancelled."""
    waits: list[asyncio.Task[object]] = [asyncio.create_task(happening)]
    if deadline is not None:
        waits.append(asyncio.create_task(clock.sleep_until(deadline)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
