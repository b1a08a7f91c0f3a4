"""The garbage collector of a process whose objects live long: what outlived one look is left out of the next ones.

CPython looks through all that is alive whenever a quarter was added. With 1,000 jobs that is 400,000 objects: half a
second in which no agent is answered, every few seconds while jobs come. Here its rare, whole looks are made by a task:
each takes what came since the last one, and what it leaves is frozen. Cycles among frozen objects go with the next look
at everything, an hour later at most; what is in no cycle goes at once, as ever.
"""

from __future__ import annotations

import gc

from trainjob_operator.clock import Clock

EVERY_S = 15.0
FULL_EVERY = 240
"""Each so many looks, one at everything: an hour."""
YOUNG, MIDDLE = 10_000, 20
"""The interpreter's own looks at what is new: after so many objects more, and each so many of those a generation up."""
NEVER = 2**30


class GarbageCollection:
    """The looks at what is old, while `keep()` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def keep(self) -> None:
        """Runs until cancelled; the interpreter's own ways are back then."""
        before = gc.get_threshold()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        try:
            number = 0
            while True:
                look(everything=number % FULL_EVERY == 0)
                number += 1
                await self._clock.sleep_until(self._clock.monotonic() + EVERY_S)
        finally:
            gc.unfreeze()
            gc.set_threshold(*before)


def look(*, everything: bool) -> None:
    """Collect what came since the last look, or all, and leave what lives out of the next ones."""
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
