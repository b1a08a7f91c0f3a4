"""How a rank's steps go: how long each takes, and what of that is the rank's own. Told to the agent every few seconds,
so that rank 0's agent can say who keeps the others waiting (`agent/pace/straggling.py`, docs/stragglers.md).

Fed by `torch.loader` (a step is a batch of a prepared loader) and, in loops without one, by `calls` (a step lies
between two report()s). Two clocks are read twice per step, and one small frame is sent per window: nothing waits.

All ranks of synchronous training take equally long for a step. What tells them apart is what they do in it: a slow one
loads or computes while the others wait in a collective.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from math import sqrt
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, TypeVar

from trainjob.session import errors
from trainjob.session.line import Line
from trainjob_api.rank_messages import Paced

T = TypeVar("T")

WINDOW_S = 5.0
"""A window is no shorter;"""
LONG_S = 30.0
"""one that is longer is halved,"""
LEAST_STEPS = 8
"""and none has fewer steps."""
DEVIATION, SQUARE_OF_MEDIAN = 1.4826, 1.5708
"""Of a normal distribution: its deviation in median absolute ones; by how much a median varies more than a mean."""
SAMPLES = 512
"""Steps of a window whose processor time is kept."""


class Moment(NamedTuple):
    """Of this thread."""

    wall: float
    cpu: float


def _median(values: List[float]) -> float:
    """As the standard library's, whose module brings decimal and fractions into each rank's start."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def moment() -> Moment:
    """Now."""
    return Moment(time.perf_counter(), time.thread_time())


class Pace:
    """Pure: one rank's steps, cut into windows. They end where the number of steps is a multiple of a power of two, so
    that those of ranks with the same pace end together.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._size = LEAST_STEPS
        self._first = 0
        self._wall = self._data = self._waited = 0.0
        self._squares = 0.0
        self._work: List[float] = []

    def waits(self, seconds: float) -> None:
        """In a call that all ranks make together: others were late."""
        self._waited += seconds

    def step(self, data_s: float, rest: Moment, grouped: bool) -> Optional[Paced]:
        """One is over: `data_s` went into its batch, `rest` is how long everything else took. `grouped`: the ranks have
        a process group, in which they may wait unseen: only processor time is surely their own. What a window told, if
        it ends.
        """
        self.steps += 1
        self._wall += data_s + rest.wall
        self._data += data_s
        self._squares += data_s * data_s
        own = rest.cpu if grouped else rest.wall - self._waited
        self._waited = 0.0
        if (self.steps - self._first) % max(1, self._size // SAMPLES) == 0:
            self._work.append(max(0.0, own))
        if self.steps % self._size:
            return None
        if self._wall < WINDOW_S:
            self._size *= 2
            return None
        return self._close()

    def _close(self) -> Optional[Paced]:
        count, usual = self.steps - self._first, _median(self._work)
        data_s = self._data / count
        # Of a mean, and of a median (for both factors: P. J. Huber, Robust Statistics).
        loading = max(0.0, self._squares / count - data_s * data_s) / count
        working = SQUARE_OF_MEDIAN * (DEVIATION * _median([abs(each - usual) for each in self._work])) ** 2
        noise_s = sqrt(loading + working / len(self._work))
        told = Paced(self.steps, self._wall / count, data_s, usual, noise_s, count)
        is_first = self._first == 0  # with a compile, caches that fill, memory that is taken
        if self._wall > LONG_S and self._size > LEAST_STEPS:
            self._size //= 2
        self._first = self.steps
        self._wall = self._data = self._squares = 0.0
        self._work = []
        return None if is_first else told


class _Mine:
    """This process's."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.by_loader = False
        """A prepared loader says what a step is."""
        self.reported: Optional[Moment] = None
        """When the last report() was called."""


_mine = _Mine()


def batches(
    source: Iterator[T], present: Callable[[], Optional[Line]], device: bool, hidden: Callable[[], bool]
) -> Iterator[T]:
    """The same batches, and each is a step. `device`: what is computed runs there, and processor time says nothing of
    it; `hidden`: the device still has work, so that it has not waited for this batch.
    """
    data_s, fetched = 0.0, None
    while True:
        began = moment()
        if fetched is not None:
            _took(data_s, began, fetched, present(), device)
        try:
            batch = next(source)
        except StopIteration:
            return
        fetched = moment()
        data_s = 0.0 if hidden() else fetched.wall - began.wall
        yield batch


def _took(data_s: float, now: Moment, since: Moment, line: Optional[Line], device: bool) -> None:
    if line is None or line.context.world_size < 2 or threading.current_thread() is not threading.main_thread():
        return
    if not _mine.by_loader:
        _mine.pace, _mine.by_loader = Pace(), True
    _step(line, data_s, now, since, device)


def _step(line: Line, data_s: float, now: Moment, since: Moment, device: bool) -> None:
    rest = Moment(now.wall - since.wall, now.cpu - since.cpu)
    told = _mine.pace.step(data_s, rest, _is_grouped())
    if told is not None:
        # Whoever calls next hears that the agent is gone.
        with contextlib.suppress(errors.AgentLostError):
            line.post(told._replace(by_loader=_mine.by_loader, device=device))


@contextlib.contextmanager
def reporting(line: Line) -> Iterator[None]:
    """Around the wait of report(): a step is over, where no loader says so."""
    began = moment()
    alone = not _mine.by_loader and line.context.world_size > 1
    if alone and _mine.reported is not None and threading.current_thread() is threading.main_thread():
        _step(line, 0.0, began, _mine.reported, _has_device())
    _mine.reported = began
    yield
    _mine.pace.waits(time.perf_counter() - began.wall)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Around the wait of another call that all ranks make together."""
    began = time.perf_counter()
    yield
    _mine.pace.waits(time.perf_counter() - began)


def _is_grouped() -> bool:
    found: Any = sys.modules.get("torch.distributed")
    ready = getattr(found, "is_initialized", None)
    return ready is not None and bool(ready())


def _has_device() -> bool:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def reset() -> None:
    """For processes that are many ranks in a row."""
    global _mine
    _mine = _Mine()
