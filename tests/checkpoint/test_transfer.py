"""Work on many items by some threads: every item once, the first error ends it, and shared threads are given back."""

from __future__ import annotations

import threading

import pytest

from support.patience import HANG_S
from trainjob.checkpoint.stores import transfer


class Gauge:
    """How many are at work at once."""

    def __init__(self, until: int = 0) -> None:
        self.most = 0
        self.done: list[int] = []
        self._now = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(until) if until else None

    def work(self, item: int) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        if self._together is not None:
            self._together.wait(HANG_S)
        with self._lock:
            self._now -= 1
            self.done.append(item)


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_every_item_is_done_once(threads: int) -> None:
    gauge = Gauge()
    transfer.each(range(20), gauge.work, threads)
    assert sorted(gauge.done) == list(range(20)) and gauge.most <= threads
    transfer.each([], gauge.work, threads)


def test_that_many_are_at_work_at_once() -> None:
    gauge = Gauge(until=4)
    transfer.each(range(8), gauge.work, 4)
    assert gauge.most == 4


def test_the_first_error_is_raised_once_nobody_is_at_work() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        transfer.each(range(1000), work, 4)
    assert len(begun) < 1000 and not [t for t in threading.enumerate() if t.name.startswith("transfer-")]


def test_threads_beyond_the_callers_own_are_shared_and_given_back() -> None:
    spare = threading.BoundedSemaphore(2)
    alone, together = Gauge(), Gauge(until=3)
    spare.acquire()
    spare.acquire()
    transfer.each(range(6), alone.work, 4, spare)
    assert alone.most == 1, "nobody waits for a thread: the caller's own does it all"
    spare.release()
    spare.release()
    transfer.each(range(6), together.work, 4, spare)
    assert together.most == 3
    assert spare.acquire(blocking=False) and spare.acquire(blocking=False)


def test_a_thread_that_becomes_free_meanwhile_is_taken() -> None:
    spare = threading.BoundedSemaphore(1)
    spare.acquire()
    other = threading.Event()
    caller = threading.current_thread()

    def work(item: int) -> None:
        if item == 0:
            spare.release()
        elif threading.current_thread() is caller:
            assert other.wait(HANG_S), "another one has begun by now"
        else:
            other.set()

    transfer.each(range(10), work, 2, spare)
    assert other.is_set()


def test_where_no_thread_can_be_started_the_callers_own_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of processes."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gauge, spare = Gauge(), threading.BoundedSemaphore(3)
    transfer.each(range(20), gauge.work, 4, spare)
    assert gauge.done == list(range(20))
    assert all(spare.acquire(blocking=False) for _ in range(3)), "given back"
