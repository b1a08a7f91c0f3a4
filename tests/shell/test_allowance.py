"""Keys that share one allowance: so many a second, and the groups take turns."""

from __future__ import annotations

import asyncio

from support.virtual_time import VirtualClock, run_virtual
from trainjob_operator.loop.allowance import HANGS_S, Allowance
from trainjob_operator.loop.workqueue import Share

Key = tuple[str, int]


def allowance(rate: float = 10.0, burst: float = 5.0, most: int = 1000) -> Allowance[Key]:
    return Allowance(VirtualClock(), Share(group=lambda key: key[0], most=most), rate, burst)


def test_so_many_at_once_and_so_many_a_second() -> None:
    async def main() -> None:
        line, loop = allowance(), asyncio.get_running_loop()
        for number in range(105):
            line.put(("crowd", number))
        times = []
        for _ in range(105):
            key = await line.next()
            times.append(loop.time())
            line.done(key)
        assert times[4] == 0.0 < times[5] and 9.9 <= times[104] <= 10.1

    run_virtual(main())


def test_groups_take_turns_and_each_keeps_its_order() -> None:
    async def main() -> None:
        line = allowance()
        keys = [("crowd", number) for number in range(100)] + [("small", 0), ("small", 1)]
        for key in keys:
            line.put(key)
        first = [await line.next() for _ in range(6)]
        assert first == [("crowd", 0), ("small", 0), ("crowd", 1), ("small", 1), ("crowd", 2), ("crowd", 3)]

    run_virtual(main())


def test_a_key_waits_once_and_may_come_again() -> None:
    async def main() -> None:
        line = allowance()
        for _ in range(3):
            line.put(("ml", 1))
        assert ("ml", 1) in line and await line.next() == ("ml", 1) and ("ml", 1) not in line
        asking = asyncio.ensure_future(line.next())
        await asyncio.sleep(HANGS_S / 4)
        assert not asking.done()
        line.put(("ml", 1))
        assert await asking == ("ml", 1)

    run_virtual(main())


def test_what_was_not_needed_is_another_keys() -> None:
    async def main() -> None:
        line, loop = allowance(burst=1.0), asyncio.get_running_loop()
        for number in range(3):
            line.put(("ml", number))
        await line.next()
        line.give_back()
        await line.next()
        assert loop.time() == 0.0
        await line.next()
        assert loop.time() > 0.0

    run_virtual(main())


def test_a_group_that_is_under_way_lets_those_that_wait_go_first() -> None:
    async def main() -> None:
        line = allowance()
        for key in [("hangs", 0), ("hangs", 1), ("well", 0), ("well", 1), ("other", 0)]:
            line.put(key)
        assert await line.next() == ("hangs", 0)
        for key in [("well", 0), ("other", 0), ("well", 1)]:
            assert await line.next() == key
            line.done(key)
        assert await line.next() == ("hangs", 1), "nobody else waits"
        for key in [("hangs", 0), ("hangs", 1)]:
            line.done(key)
        assert not line._under_way and not line._lines

    run_virtual(main())


def test_no_group_has_more_than_its_share_under_way() -> None:
    async def main() -> None:
        line = allowance(most=2)
        for number in range(4):
            line.put(("hangs", number))
        assert [await line.next() for _ in range(2)] == [("hangs", 0), ("hangs", 1)]
        asking = asyncio.ensure_future(line.next())
        await asyncio.sleep(HANGS_S / 4)
        assert not asking.done()
        line.put(("well", 0))
        assert await asking == ("well", 0)
        asking = asyncio.ensure_future(line.next())
        await asyncio.sleep(HANGS_S / 4)
        line.done(("hangs", 1))
        assert await asking == ("hangs", 2)

    run_virtual(main())


def test_a_group_that_hangs_has_no_second_one_under_way() -> None:
    async def main() -> None:
        line = allowance(most=2)
        line.put(("hangs", 0))
        assert await line.next() == ("hangs", 0)
        await asyncio.sleep(HANGS_S)
        line.put(("hangs", 1))
        asking = asyncio.ensure_future(line.next())
        await asyncio.sleep(100.0)
        assert not asking.done(), "nobody else waits, but somebody may come"
        for number in range(2):
            line.put(("well", number))
            assert await asking == ("well", number)
            asking = asyncio.ensure_future(line.next())
        line.done(("hangs", 0))
        assert await asking == ("hangs", 1)

    run_virtual(main())
