"""Progress is written however it meets the turns of its job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from types import SimpleNamespace
from typing import Any

from support.virtual_time import VirtualClock, run_virtual
from trainjob_operator.loop.progress_writer import ProgressWriter

KEY = ("default", "digits")


class Turns:
    """One runs for so long; what is asked for is kept."""

    def __init__(self, until: float) -> None:
        self.until, self.asked = until, 0

    def has_turn(self, key: Any) -> bool:
        return asyncio.get_running_loop().time() < self.until

    def is_ours(self, namespace: str) -> bool:
        return False  # the writer leaves it to a turn then, which is what this test sees

    def ask(self, key: Any, after_s: float) -> None:
        self.asked += 1


def test_what_comes_after_the_look_of_a_turn_that_runs_is_written_after_it() -> None:
    async def main() -> None:
        means: Any = SimpleNamespace(
            cluster=None, agents=None, clock=VirtualClock(), log=logging.getLogger(), rng=random.Random(1)
        )
        nobody: Any = None
        turns = Turns(until=asyncio.get_running_loop().time() + 7.0)
        writer = ProgressWriter(means, nobody, turns, nobody)
        progress = SimpleNamespace(written_at=None)
        seen: Any = SimpleNamespace(job=SimpleNamespace(status=SimpleNamespace(progress=progress)))
        writer._seen[KEY] = seen
        running = asyncio.create_task(writer.run())
        writer.show(KEY)
        await asyncio.sleep(5.0)
        assert turns.asked == 0
        await asyncio.sleep(5.0)
        assert turns.asked == 1
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    run_virtual(main())
