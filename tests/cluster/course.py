"""Where a long command is: which step of how many, and that it still works.

Called by `__main__.py`; knows the steps' names alone. A step that takes minutes says so every half minute, with the log
to look into.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cluster.process import say

PULSE_S = 30.0
"""Seconds between two words about a step that is not over."""


class Course:
    """The steps of one command, each entered once and in their order."""

    def __init__(
        self,
        steps: Sequence[str],
        *,
        tell: Callable[[str], None] = say,
        now: Callable[[], float] = time.monotonic,
        pulse_s: float = PULSE_S,
    ) -> None:
        self._steps, self._tell, self._now, self._pulse_s = tuple(steps), tell, now, pulse_s
        self._begun, self._at = now(), 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """The next step: told when it begins, while it lasts, and what it took."""
        name = self._steps[self._at]
        self._at += 1
        place, begun, over = f"step {self._at} of {len(self._steps)}", self._now(), threading.Event()
        self._tell(f"{place}: {name} ({took(begun - self._begun)} so far)")

        def pulse() -> None:
            while not over.wait(self._pulse_s):
                self._tell(f"{place}: still at it after {took(self._now() - begun)}")

        pulses = threading.Thread(target=pulse, name="pulse", daemon=True)
        pulses.start()
        try:
            yield
        finally:
            over.set()
            pulses.join()
        self._tell(f"{place}: done in {took(self._now() - begun)}")


def took(seconds: float) -> str:
    """`42 s`, `3 min 5 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
