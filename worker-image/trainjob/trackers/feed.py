"""A tracker's queue and its thread: who trains, and who follows the training, never waits for a tracker.

Made by `tracker`, one for each run. What fails is said once and tried again; what hangs is left behind at the end.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from trainjob.integrations.needed import MissingLibraryError
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.screen import streams, wording

LIMIT = 10_000
"""Reports that may wait; beyond it the oldest are lost, which is said at the end."""
RETRY_S = (1.0, 30.0)
"""After a failure: the first pause, and the longest."""

TRIES_AT_END = 3
"""So often what waits is tried once nothing more comes."""


class Recorder(Protocol):
    """What is fed; all of it in one thread."""

    def open(self, run_context: RunContext, first: Report) -> None: ...

    def restart(self, first: Report) -> None: ...

    def write(self, reports: Sequence[Report]) -> None: ...

    def close(self, error: BaseException | None) -> None: ...


class Feed:
    """Of one tracker and one run."""

    def __init__(self, recorder: Recorder, context: RunContext, retry_s: tuple[float, float] = RETRY_S) -> None:
        self._recorder, self._context, self._name = recorder, context, type(recorder).__name__
        self._first_retry_s, self._longest_retry_s = retry_s
        self._waiting: deque[Report] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self._opened = False
        self._attempt: int | None = None
        self._lost = 0
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"trainjob-{self._name}", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Waits for nothing."""
        with self._changed:
            if len(self._waiting) >= LIMIT:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(report)
            self._changed.notify()

    def end(self, error: BaseException | None, patience_s: float) -> None:
        """Nothing more comes: what waits is recorded, for at most `patience_s`."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify()
        self._thread.join(patience_s)
        hangs = self._thread.is_alive()
        missing = len(self._waiting) + self._lost
        if hangs:
            self._say(f"it has not come to its end within {wording.duration(patience_s)} and is not waited for")
        if missing:
            self._say(f"{wording.count(missing, 'report')} did not reach it; `tj history` has all")

    def _work(self) -> None:
        pause, left = self._first_retry_s, TRIES_AT_END
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                last = self._ended
            try:
                self._deliver()
                pause = self._first_retry_s
            except MissingLibraryError as error:
                self._say(str(error))
                return
            except Exception as error:  # whatever a tracker's library raises
                self._say(f"{type(error).__name__}: {str(error).strip()} (the training goes on, this is tried again)")
                left -= last
                if not left:
                    return
                if last:
                    time.sleep(pause)
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, timeout=pause)
                pause = min(2 * pause, self._longest_retry_s)
                continue
            if last:
                self._close()
                return

    def _deliver(self) -> None:
        """All that waits, the reports of an attempt together. What was recorded waits no more."""
        with self._changed:
            reports = list(self._waiting)
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            rows = list(group)
            if not self._opened:
                self._recorder.open(self._context, rows[0])
                self._opened, self._attempt = True, attempt
            elif attempt != self._attempt:
                self._recorder.restart(rows[0])
                self._attempt = attempt
            self._recorder.write(rows)
            with self._changed:
                for row in rows:
                    if self._waiting and self._waiting[0] is row:
                        self._waiting.popleft()

    def _close(self) -> None:
        if not self._opened:
            return
        try:
            self._recorder.close(self._error)
        except Exception as error:  # as above
            self._say(f"{type(error).__name__}: {str(error).strip()}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            streams.write(sys.stderr, f"tj  | {self._name}: {text}")
