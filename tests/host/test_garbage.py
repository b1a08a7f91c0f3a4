"""Cycles are collected soon where they are new and within the hour where they are old; nothing old is looked through
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from support.virtual_time import VirtualClock, passes, run_virtual
from trainjob_operator.process import garbage


class Ring:
    """Holds itself: only a look finds that nobody else does."""

    def __init__(self) -> None:
        self.own = self


async def kept(seconds: float) -> asyncio.Task[None]:
    keeping = asyncio.create_task(garbage.GarbageCollection(VirtualClock()).keep())
    await passes(seconds)
    return keeping


async def ended(keeping: asyncio.Task[None]) -> None:
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """For later tests too: what was frozen when tests were collected is that again."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if frozen:
        gc.collect()
        gc.freeze()


def test_a_cycle_goes_with_the_next_look() -> None:
    async def main() -> None:
        keeping = await kept(1.0)
        gone = weakref.ref(Ring())
        assert gone() is not None
        await passes(garbage.EVERY_S)
        assert gone() is None
        await ended(keeping)

    run_virtual(main())


def test_a_cycle_that_was_alive_at_a_look_goes_within_the_hour() -> None:
    async def main() -> None:
        keeping = await kept(1.0)
        old = Ring()
        gone = weakref.ref(old)
        await passes(garbage.EVERY_S)
        del old
        await passes(garbage.EVERY_S)
        assert gone() is not None, "what is frozen is not looked through"
        await passes(garbage.EVERY_S * garbage.FULL_EVERY)
        assert gone() is None
        await ended(keeping)

    run_virtual(main())


def test_a_look_takes_what_came_since_the_last_one_alone() -> None:
    async def main() -> None:
        keeping = await kept(1.0)
        held = [Ring() for _ in range(1000)]
        await passes(garbage.EVERY_S)
        alive = len(gc.get_objects())
        assert gc.get_freeze_count() > len(held)
        assert alive < len(held), "the next look goes through these"
        await ended(keeping)

    run_virtual(main())


def test_the_interpreter_never_looks_through_everything_by_itself_meanwhile() -> None:
    async def main() -> None:
        before = gc.get_threshold()
        keeping = await kept(1.0)
        looked = []

        def told(phase: str, info: dict[str, int]) -> None:
            if phase == "start" and info["generation"] == 2:
                looked.append(info)

        gc.callbacks.append(told)
        try:
            held = [[] for _ in range(garbage.YOUNG * garbage.MIDDLE * 3)]
        finally:
            gc.callbacks.remove(told)
        assert held and not looked
        await ended(keeping)
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0

    run_virtual(main())
