"""That an agent is not heard any more is news too, and nobody brings it: one timer a job, which looks at our own memory
and at nothing else.

Made by the coordinator. Without it every job would be looked at on the cluster again and again, only to find that all
its agents speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from trainjob_operator.clock import Clock
from trainjob_operator.cluster import JobKey

SLACK_S = 0.1
"""A silence is looked at so much later than it is due: no clock may have it fall short."""
TICK = timedelta(microseconds=1)

Due = Callable[[JobKey, datetime], datetime | None]
"""(job, moment) -> when, after that moment, the next of its agents will have been silent for too long unless it
speaks; None: nobody is waited for.
"""


class SilenceWatch:
    """Asks for a look at a job when one of its agents has just fallen silent; once for each."""

    def __init__(self, clock: Clock, due: Due, look: Callable[[JobKey], None]) -> None:
        self._clock = clock
        self._due = due
        self._look = look
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._closed = False

    def watch(self, key: JobKey) -> None:
        """The job is there; called as often as one likes."""
        if key in self._timers or self._closed:
            return
        now = self._clock.steady()
        due = self._due(key, now)
        if due is not None:
            delay_s = (due - now).total_seconds() + SLACK_S
            self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self._at, key, due)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        for key in list(self._timers):
            self.forget(key)

    def _at(self, key: JobKey, due: datetime) -> None:
        del self._timers[key]
        silent_at = self._due(key, due - TICK)
        if silent_at is not None and silent_at <= self._clock.steady():
            self._look(key)
        self.watch(key)
