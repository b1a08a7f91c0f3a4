"""An event loop whose time jumps: when nothing is ready to run, it is the time of the next timer.

Hours pass in milliseconds and each run is the same. Nothing may wait for a real file descriptor; a program that waits
for something which never comes is stopped with a sentence instead of hanging.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from trainjob_operator.steady_time import SLEW, SteadyTime

T = TypeVar("T")

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Deadlock(AssertionError):
    """Nothing is ready, no timer is set: the program would wait forever."""


class _JumpingSelector(selectors.BaseSelector):
    """Polls the loop's own wake-up socket and lets time jump instead of waiting."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock("every task waits for something and no timer is set")
        self.time += max(0.0, timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; its `time()` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.time

    def stall(self, seconds: float) -> None:
        """Time passes in which nothing runs: the process is stopped, or the machine has no time for it."""
        self._jumping.time += seconds

    @property
    def _clock_resolution(self) -> float:
        """So much before its moment a timer may be due. A nanosecond, as of a real clock, would be for ever here: who
        waits for a moment that is nearer would find again and again that it has not come.
        """
        return math.ulp(self._jumping.time)

    @_clock_resolution.setter
    def _clock_resolution(self, real: float) -> None:
        pass


class VirtualClock:
    """The operator's Clock over the running loop's time."""

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())

    def steady(self) -> datetime:
        return self.now()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_until(self, deadline: float) -> None:
        await asyncio.sleep(max(0.0, deadline - self.monotonic()))


class MachineClock(VirtualClock):
    """One machine's: somebody may set its wall clock, before the process begins (`error`) or meanwhile."""

    def __init__(self, slew: float = SLEW, error: timedelta = timedelta(0)) -> None:
        self.error = error
        self._steady = SteadyTime(self.now, self.monotonic, slew)

    def now(self) -> datetime:
        return super().now() + self.error

    def steady(self) -> datetime:
        return self._steady.now()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def passes(seconds: float) -> None:
    """Let virtual time pass, and what is due by then happen."""
    await asyncio.sleep(seconds)
