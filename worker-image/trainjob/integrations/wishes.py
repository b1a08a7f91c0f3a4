"""Whether a planned change waits for a checkpoint, for loops that report rarely.

`checkpoint_requested()` hears it with the answer of a collective. A framework's loop may make none for minutes, so the
callbacks make one about every two seconds, all ranks at the same step.
"""

from __future__ import annotations

import time
from typing import Callable

from trainjob.session import calls

EVERY_S = 2.0
MOST_STEPS = 10_000
"""Between two questions, however short a step is."""


class Wishes:
    """Asked once a step, on all ranks alike. The number of steps between two questions is rank 0's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._steps = 0
        self._pause = 1

    def heard(self) -> bool:
        """Whether a checkpoint behind this step is wished. Raises as `barrier()` does, when it is time to ask."""
        self._steps += 1
        if self._steps >= self._pause:
            now = self._clock()
            a_step_s = max(now - self._begun, 1e-9) / self._steps
            self._pause = calls.broadcast_from_rank_zero(max(1, min(MOST_STEPS, round(EVERY_S / a_step_s))))
            self._begun, self._steps = now, 0
        return calls.checkpoint_requested()
