"""How far a transfer is: a bar on a terminal, a line now and then elsewhere. On standard error; called from any thread.

While one is shown, Ctrl-C ends all threads of the transfer at their next block: each might have gigabytes to go.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from trainjob.screen import wording
from trainjob.screen.display import wants_panel

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_S = 10.0
"""Between two lines."""
TOLD_S = 1.0
"""A transfer that ended sooner is not worth a line."""


def progress(what: str, total: int) -> Bar | Lines:
    """A context manager for a transfer of that many bytes, with `moved`."""
    if wants_panel(plain=False, terminal=sys.stderr.isatty(), environment=os.environ):
        return Bar(what, total)
    return Lines(what, total, sys.stderr)


class Interruptible:
    """Hears of Ctrl-C, and lets no thread move on after it."""

    def __init__(self) -> None:
        self._stopped = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def moved(self, count: int) -> None:
        """That many bytes more. Raises KeyboardInterrupt."""
        if self._stopped:
            raise KeyboardInterrupt

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        raise KeyboardInterrupt


class Lines(Interruptible):
    """`tj  | 1-1-3: 1.2 GiB of 4.0 GiB, 210.0 MiB/s, 14s left`, and one line at the end of what took a while."""

    def __init__(self, what: str, total: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._what, self._total, self._out, self._clock = what, total, out, clock
        self._lock = threading.Lock()
        self._begun = clock()
        self._next = self._begun + LINE_S
        self._done = 0

    def moved(self, count: int) -> None:
        """That many bytes more."""
        super().moved(count)
        with self._lock:
            self._done += count
            now = self._clock()
            if now < self._next:
                return
            self._next = now + LINE_S
            rate = self._done / max(now - self._begun, 1e-6)
            left = max(0, self._total - self._done) / max(rate, 1.0)
            self._say(
                f"{wording.size(self._done)} of {wording.size(self._total)}, {wording.size(int(rate))}/s, "
                f"{wording.duration(left)} left"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        took = max(self._clock() - self._begun, 1e-6)
        if kind is None and took < TOLD_S:
            return
        ended = "" if kind is None else f" of {wording.size(self._total)}, then it stopped"
        self._say(
            f"{wording.size(self._done)} in {wording.duration(took)}, {wording.size(int(self._done / took))}/s{ended}"
        )

    def _say(self, text: str) -> None:
        print(f"tj  | {self._what}: {text}", file=self._out, flush=True)


class Bar(Interruptible):
    """rich's bar, with bytes, rate and the time left."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bars: Progress = Progress(*columns, console=Console(stderr=True))
        self._task: TaskID = self._bars.add_task(what, total=total)

    def moved(self, count: int) -> None:
        """That many bytes more."""
        super().moved(count)
        self._bars.advance(self._task, count)

    def __enter__(self) -> Self:
        self._bars.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._bars.stop()
