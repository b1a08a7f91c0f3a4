"""Events: a job that says much is cut to a trickle, others are not, and an event that is refused harms nothing."""

from __future__ import annotations

from typing import Any

from support.virtual_time import VirtualClock, passes, run_virtual
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import Manifest, Rejected
from trainjob_operator.loop import recorder as limits
from trainjob_operator.loop.recorder import Recorder, recorded
from trainjob_operator.memory import MemoryCluster


class _Book:
    """Where events go."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.refuses = False

    async def write(self, namespace: str, event: Manifest) -> None:
        if self.refuses:
            raise Rejected("namespace is being terminated")
        self.events.append(f"{event['involvedObject']['name']}: {event['message']}")


def event(job: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{job}.{message}"},
        "involvedObject": {"uid": f"uid-{job}", "name": job},
        "reason": "R",
        "message": message,
    }


def test_a_burst_passes_then_a_trickle() -> None:
    async def story() -> None:
        book = _Book()
        recorder = Recorder(book.write, VirtualClock())
        for number in range(3 * limits.BURST):
            await recorder.record("ns", event("loud", str(number)))
        assert len(book.events) == limits.BURST
        assert (recorder.written, recorder.withheld) == (limits.BURST, 2 * limits.BURST)
        for _ in range(5):
            await passes(limits.EVERY_S + 0.01)
            await recorder.record("ns", event("loud", "again"))
            await recorder.record("ns", event("loud", "too much"))
        assert book.events[limits.BURST :] == ["loud: again"] * 5

    run_virtual(story())


def test_one_jobs_noise_costs_another_nothing() -> None:
    async def story() -> None:
        book = _Book()
        recorder = Recorder(book.write, VirtualClock())
        for number in range(2 * limits.BURST):
            await recorder.record("ns", event("loud", str(number)))
        await recorder.record("ns", event("quiet", "hello"))
        assert book.events[-1] == "quiet: hello"

    run_virtual(story())


def test_silence_earns_a_full_burst_and_no_more() -> None:
    async def story() -> None:
        book = _Book()
        recorder = Recorder(book.write, VirtualClock())
        await recorder.record("ns", event("a", "first"))
        await passes(1000 * limits.EVERY_S)
        for number in range(2 * limits.BURST):
            await recorder.record("ns", event("a", str(number)))
        assert len(book.events) == 1 + limits.BURST

    run_virtual(story())


def test_a_refused_event_is_counted_and_not_raised() -> None:
    async def story() -> None:
        book = _Book()
        book.refuses = True
        recorder = Recorder(book.write, VirtualClock())
        await recorder.record("ns", event("a", "first"))
        assert recorder.failed == 1

    run_virtual(story())


def test_allowances_of_many_jobs_do_not_pile_up() -> None:
    async def story() -> None:
        recorder = Recorder(_Book().write, VirtualClock())
        for number in range(limits.JOBS_KEPT + 100):
            await recorder.record("ns", event(f"job-{number}", "hello"))
        assert len(recorder._allowances) == limits.JOBS_KEPT

    run_virtual(story())


def test_the_recorded_cluster_raises_counts_and_passes_everything_else_through() -> None:
    async def story() -> None:
        memory = MemoryCluster(VirtualClock())
        cluster = recorded(memory, Recorder(memory.create_event, SystemClock()))
        for _ in range(3):
            await cluster.create_event("ns", event("a", "said-thrice"))
        (only,) = memory.events()
        assert only["count"] == 3
        assert await cluster.list_jobs() == []

    run_virtual(story())
