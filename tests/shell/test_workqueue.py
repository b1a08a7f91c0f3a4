"""The queue: dedupe, delays, back-off, one turn of a key at a time."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from support.virtual_time import VirtualClock, run_virtual
from trainjob_operator.clock import wait_until
from trainjob_operator.loop.workqueue import (
    HURRIES_AT_ONCE,
    TURNS_A_SECOND,
    TURNS_AT_ONCE,
    Backoff,
    Schedule,
    Share,
    WorkQueue,
)


def queue(**backoff: float) -> WorkQueue[str]:
    return WorkQueue(VirtualClock(), random.Random(1), Backoff(**backoff))


def now() -> float:
    return asyncio.get_running_loop().time()


# --- The schedule, told the time --------------------------------------------------------------------------------------


def test_deadlines_that_are_asked_for_again_and_again_do_not_pile_up() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("b", 5e5)
    for n in range(10_000):
        schedule.add("a", float(n))
        assert schedule.take(float(n)) == "a"
        schedule.add("a", 6e5 + n)
        schedule.done("a")
    assert len(schedule) == 2 and len(schedule._heap) < 100
    assert schedule.take(1e9) == "b" and schedule.take(1e9) == "a" and schedule.take(1e9) is None


def test_a_key_asked_for_twice_is_due_once() -> None:
    schedule: Schedule[str] = Schedule()
    assert schedule.add("a", 1.0)
    assert not schedule.add("a", 1.0)
    assert schedule.take(5.0) == "a"
    schedule.done("a")
    assert schedule.take(5.0) is None


def test_the_earliest_wish_stands() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 10.0)
    schedule.add("a", 3.0)
    schedule.add("a", 20.0)
    assert schedule.next_due() == 3.0
    assert schedule.take(2.9) is None
    assert schedule.take(3.0) == "a"
    schedule.done("a")
    assert schedule.next_due() is None, "the later wishes were the same one"


def test_a_taken_key_waits_until_it_is_given_back() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0.0)
    assert schedule.take(0.0) == "a"
    schedule.add("a", 0.0)
    assert schedule.take(1.0) is None
    assert schedule.next_due() is None
    schedule.done("a")
    assert schedule.take(1.0) == "a"


def test_keys_come_in_the_order_in_which_they_are_due() -> None:
    schedule: Schedule[str] = Schedule()
    for key, due in (("c", 3.0), ("a", 1.0), ("b", 1.0)):
        schedule.add(key, due)
    assert [schedule.take(9.0) for _ in range(4)] == ["a", "b", "c", None]


def test_no_event_cuts_a_rest_short() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 1.0)
    schedule.rest("a", 8.0)
    schedule.add("a", 2.0)
    assert schedule.next_due() == 8.0
    schedule.wake("a")
    schedule.add("a", 2.0)
    assert schedule.next_due() == 2.0


class _Model:
    """The slowest queue that is right."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}
        self.taken: set[str] = set()

    def ready(self, at: float) -> list[str]:
        free = {key: due for key, due in self.due.items() if key not in self.taken and due <= at}
        return [key for key, due in free.items() if due == min(free.values())]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "take", "done"]), st.integers(0, 5)), max_size=60
    )
)
def test_any_history_agrees_with_the_model(history: list[tuple[str, str, int]]) -> None:
    schedule: Schedule[str] = Schedule()
    model = _Model()
    for key, what, time in history:
        if what == "add":
            schedule.add(key, time)
            model.due[key] = min(time, model.due.get(key, time))
        elif what == "done":
            schedule.done(key)
            model.taken.discard(key)
        else:
            ready = model.ready(time)
            taken = schedule.take(time)
            assert (taken in ready) if ready else taken is None
            if taken is not None:
                del model.due[taken]
                model.taken.add(taken)
        assert len(schedule) == len(model.due)


# --- The queue --------------------------------------------------------------------------------------------------------


def test_get_waits_until_a_key_is_due() -> None:
    async def main() -> None:
        keys = queue()
        keys.add_after("later", 30.0)
        assert await keys.get() == "later"
        assert now() == 30.0

    run_virtual(main())


def test_a_waiting_worker_hears_of_an_earlier_wish() -> None:
    async def main() -> None:
        keys = queue()
        keys.add_after("later", 30.0)
        waiting = asyncio.ensure_future(keys.get())
        await asyncio.sleep(1.0)
        keys.add("now")
        assert await waiting == "now"
        assert now() == 1.0

    run_virtual(main())


def test_workers_share_the_keys_and_never_one_key() -> None:
    async def main() -> None:
        keys = queue()
        running: set[str] = set()
        turns: list[str] = []

        async def worker() -> None:
            while True:
                key = await keys.get()
                assert key not in running
                running.add(key)
                await asyncio.sleep(1.0)
                turns.append(key)
                running.discard(key)
                keys.done(key)

        workers = [asyncio.ensure_future(worker()) for _ in range(4)]
        for _ in range(3):
            for key in "abcd":
                keys.add(key)
            await asyncio.sleep(0.3)
        await asyncio.sleep(10.0)
        for task in workers:
            task.cancel()
        assert sorted(turns) == sorted("abcd" * 2), "asked for twice while a turn ran: one more turn"

    run_virtual(main())


def test_back_off_doubles_with_jitter_and_starts_over_after_success() -> None:
    async def main() -> None:
        keys = queue(first_s=1.0, longest_s=10.0)
        delays = []
        for _ in range(6):
            delays.append(keys.retry("a"))
            assert await keys.get() == "a"
            keys.done("a")
        for delay, full in zip(delays, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0], strict=True):
            assert full / 2 <= delay <= full
        assert len(set(delays)) == 6, "jitter"
        assert now() >= sum(delays) - 1e-9
        keys.succeeded("a")
        assert keys.retry("a") <= 1.0

    run_virtual(main())


def test_events_during_a_rest_wait_for_its_end() -> None:
    async def main() -> None:
        keys = queue(first_s=8.0)
        delay = keys.retry("a")
        keys.add("a")
        keys.add("b")
        assert await keys.get() == "b"
        assert now() == 0.0
        assert await keys.get() == "a"
        assert now() == delay

    run_virtual(main())


def test_a_retry_while_taken_counts_after_done() -> None:
    async def main() -> None:
        keys = queue(first_s=4.0)
        keys.add("a")
        assert await keys.get() == "a"
        keys.add("a")  # an event arrives during the turn, which then fails
        delay = keys.retry("a")
        keys.done("a")
        assert await keys.get() == "a"
        assert now() == delay

    run_virtual(main())


def test_a_key_that_is_asked_for_all_the_time_has_its_pace_and_others_do_not_wait_for_it() -> None:
    async def main() -> None:
        keys = queue()
        turns = 0
        while now() < 30.0:
            keys.add("busy")
            if turns == 25:
                keys.add("other")
                assert await keys.get() == "other"
                keys.done("other")
            assert await keys.get() == "busy"
            turns += 1
            keys.done("busy")
        assert TURNS_AT_ONCE + 25 * TURNS_A_SECOND <= turns <= TURNS_AT_ONCE + 31 * TURNS_A_SECOND + 1

    run_virtual(main())


def test_news_of_a_break_waits_for_no_pace_of_other_turns() -> None:
    async def main() -> None:
        keys = queue()
        for _ in range(TURNS_AT_ONCE):
            keys.add("busy")
            keys.done(await keys.get())
        keys.add("busy")
        keys.add("other")
        keys.done(await keys.get())
        assert now() == 0.0
        for _ in range(HURRIES_AT_ONCE):
            keys.hurry("busy")
            keys.done(await keys.get())
        assert now() == 0.0, "none of them waited"
        keys.hurry("busy")
        keys.done(await keys.get())
        assert now() > 0.0, "nor may an agent have turns without end by breaking all the time"

    run_virtual(main())


def test_news_of_a_break_does_not_cut_the_rest_after_a_failed_turn_short() -> None:
    async def main() -> None:
        keys = queue(first_s=4.0)
        keys.add("a")
        assert await keys.get() == "a"
        delay = keys.retry("a")
        keys.done("a")
        keys.hurry("a")
        assert await keys.get() == "a"
        assert now() == delay

    run_virtual(main())


def test_one_group_of_keys_does_not_get_every_worker() -> None:
    async def main() -> None:
        keys: WorkQueue[tuple[str, int]] = WorkQueue(
            VirtualClock(), random.Random(1), share=Share(group=lambda key: key[0], most=3)
        )
        for number in range(10):
            keys.add(("hangs", number))
        keys.add(("other", 0))
        taken = [await keys.get() for _ in range(4)]
        assert [group for group, _ in taken] == ["hangs", "hangs", "hangs", "other"]
        assert len(keys) == 7
        keys.done(taken[1])
        assert await keys.get() == ("hangs", 3), "in their order"
        for key in (taken[0], taken[2], taken[3], ("hangs", 3)):
            keys.done(key)
        rest = []
        while len(keys):
            key = await keys.get()
            rest.append(key[1])
            keys.done(key)
        assert sorted(rest) == [4, 5, 6, 7, 8, 9], "nobody is forgotten"

    run_virtual(main())


def test_a_moment_that_is_nearer_than_a_clock_can_tell_comes_in_virtual_time_too() -> None:
    """Else several who wait for it keep each other spinning: it is not due yet, and its timer fires at once."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        due, looks = loop.time() + 1e-10, 0

        async def worker(late: int) -> None:
            nonlocal looks
            for _ in range(late):
                await asyncio.sleep(0)
            while loop.time() < due and looks < 1000:
                looks += 1
                await wait_until(VirtualClock(), due, asyncio.Event().wait())

        await asyncio.gather(*map(worker, range(8)))
        assert looks < 1000

    run_virtual(main())
