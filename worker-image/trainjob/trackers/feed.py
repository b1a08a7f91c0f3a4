"""A tracker's queue and its thread: who trains, and who follows the training, never waits for a tracker.

Made by `tracker`, one for each run. What fails is said once and tried again; what hangs is left behind at the end. Of
several processes that follow one training one feeds, see `claim`: the others stop, and write nothing more.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from trainjob.checkpoint.errors import UNREADABLE, StoreError
from trainjob.checkpoint.stores.store import Store
from trainjob.integrations.needed import MissingLibraryError
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.screen import wording
from trainjob.trackers import output, source
from trainjob.trackers.backlog import Backlog
from trainjob.trackers.claim import Mark, is_recorded
from trainjob.trackers.turn import Limits, StorageSilent, Turn, TurnOver

LIMIT = 10_000
"""Reports that wait in memory. What is beyond waits on the job's storage; where this process sees none, the oldest are
lost, which is said at once.
"""
RETRY_S = (1.0, 30.0)
"""After a failure: the first pause, and the longest."""
SLOW_S = 15.0
"""A call of a tracker that takes longer is told: a library may try for minutes before it says what is wrong."""
TRIES_AT_END = 3
"""So often what waits is tried once nothing more comes, and again as often after each batch that was written."""
READ_TRIES = 5
"""So often what an earlier run has left is read on a storage that answers else; one that is away is waited for."""


class Recorder(Protocol):
    """What is fed; all of it in one thread."""

    def place(self, run_context: RunContext) -> str: ...

    def open(self, run_context: RunContext, first: Report) -> None: ...

    def restart(self, first: Report) -> None: ...

    def write(self, reports: Sequence[Report]) -> None: ...

    def leave(self) -> None: ...

    def settle(self, run_context: RunContext, last: Report, error: BaseException | None) -> None: ...

    def close(self, error: BaseException | None) -> None: ...


class Feed:
    """Of one tracker and one run."""

    def __init__(
        self,
        recorder: Recorder,
        context: RunContext,
        retry_s: tuple[float, float] = RETRY_S,
        limits: Limits | None = None,
        attempt: int | None = None,
    ) -> None:
        """`attempt`: the one that this process follows, where it is of one alone; None: its first report's."""
        self._follows, self._closes = attempt, True
        self._recorder, self._context, self._name = recorder, context, type(recorder).__name__
        self._first_retry_s, self._longest_retry_s = retry_s
        self._waiting: deque[Report] = deque()
        self._newest: Report | None = None
        self._recorded: Mark | None = None
        """What those before have recorded."""
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self._opened = False
        self._attempt: int | None = None
        self._lost = 0
        self._stored: bool | None = None
        """Whether reports are on a storage that this process sees."""
        self._beyond = 0
        """Reports that wait there alone: all since the queue was full, up to the newest."""
        self._backlog: Backlog | None = None
        self._written: Mark | None = None
        """The last report that is recorded here."""
        self._said: set[str] = set()
        self._limits = limits or Limits()
        self._fed = source.fed_as(context.run_id, self._name, _place_of(recorder, context))
        self._turn: Turn | None = None
        self._has_turn = self._began = False
        """Its turn was waited for; and what those before had left is read."""
        self._before: Mark | None = None
        self._read_tries = 0
        self._over = False
        """Another process feeds it."""
        self._left_behind = False
        self._patience_s, self._until = 0.0, 0.0
        self._asking: tuple[str, float] | None = None
        """The tracker's method that is at work, since when."""
        self._thread = threading.Thread(target=self._work, name=f"trainjob-{self._name}", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Waits for nothing."""
        with self._changed:
            if self._over:
                return
            self._newest = report
            if is_recorded(self._recorded, source.mark_of(report)):
                return
            self._queue(report)
        asking = self._asking
        if asking is not None and time.monotonic() - asking[1] >= SLOW_S:
            self._say(
                f"{asking[0]}() has not come back for {wording.duration(SLOW_S)}: its server may be away (the training "
                "goes on)"
            )

    def _queue(self, report: Report) -> None:
        full = len(self._waiting) >= LIMIT
        if self._stored is None:
            self._stored = source.is_seen(self._context, report)
        if self._beyond or (full and self._stored):
            self._beyond += 1
            return
        if full:
            self._waiting.popleft()
            self._lost += 1
            self._say(
                f"{LIMIT:,} reports wait for it, and this process does not see the job's storage: from now on the "
                "oldest are lost"
            )
        self._waiting.append(report)
        self._changed.notify()

    @property
    def room(self) -> int:
        """So many reports it takes now without losing one; 0 also when it takes none any more."""
        return max(0, LIMIT - len(self._waiting)) if self.is_alive else 0

    @property
    def is_alive(self) -> bool:
        """Whether anything that is put into it may still come out."""
        return self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Another process feeds it."""
        return self._over

    def end(self, error: BaseException | None, patience_s: float, *, closes: bool = True) -> None:
        """Nothing more comes: what waits is recorded, for at most `patience_s`. `closes`: the run is over, too; else
        another process goes on with it.
        """
        self.last(error, patience_s, closes=closes)
        self.wait()

    def last(self, error: BaseException | None, patience_s: float, *, closes: bool = True) -> None:
        """The same without waiting: so several have the same time."""
        with self._changed:
            self._ended, self._error, self._closes = True, error, closes
            if self._turn is not None:
                self._turn.leaves = not closes
            self._patience_s, self._until = patience_s, time.monotonic() + patience_s
            self._changed.notify()

    def wait(self) -> None:
        """For what waits, after `last`."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        source.free(self._fed)
        hangs = self._left_behind = self._thread.is_alive()
        asking = self._asking
        where = "" if asking is None else f" ({asking[0]}() has not come back)"
        missing = len(self._waiting) + self._beyond + self._lost
        if hangs:
            self._say(
                f"it has not come to its end within {wording.duration(self._patience_s)} and is not waited for{where}"
            )
        if missing:
            self._say(f"{wording.count(missing, 'report')} did not reach it; `tj history` has all")

    def _work(self) -> None:
        pause, left, before = self._first_retry_s, TRIES_AT_END, self._written
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended, self._look_s())
                last = self._ended
            try:
                self._deliver()
                pause = self._first_retry_s
            except TurnOver as over:
                self._stop(over)
                return
            except MissingLibraryError as error:
                self._say(str(error))
                self._leave_turn()
                return
            except BaseException as error:  # whatever a tracker's library raises: some exit, native ones panic
                self._say(f"{type(error).__name__}: {str(error).strip()} (the training goes on, this is tried again)")
                if last and left == TRIES_AT_END:
                    pause = self._first_retry_s  # it may have been away for long: now there is little time
                left = (TRIES_AT_END if self._written != before else left) - last
                before = self._written
                if not left:
                    if self._opened:
                        self._close()
                    self._leave_turn()
                    return
                if last:
                    self._limits.pause(pause)
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, timeout=pause)
                pause = min(2 * pause, self._longest_retry_s)
                continue
            if last:
                self._close()
                self._leave_turn()
                return

    def _deliver(self) -> None:
        """All that waits, also on the storage."""
        if not self._began:
            self._begin()
        elif not self._waiting:
            self._check()
        self._write()
        while self._beyond:
            if not self._waiting:  # what has come while the last ones were written is before those
                self._refill()
            self._write()

    def _refill(self) -> None:
        """With what had no room. Raises StoreError."""
        with self._changed:
            newest = self._newest
        before = max(filter(None, (self._written, self._recorded)), default=None)
        assert newest is not None and before is not None  # the queue was full
        last = source.mark_of(newest)
        found = self._read(before, last, newest) if before < last else []
        with self._changed:
            self._waiting.extend(found)
            if before < last and not found:
                self._lost += self._beyond
            if self._newest is newest and (not found or source.mark_of(found[-1]) == last):
                self._beyond = 0
            else:
                self._beyond = max(1, self._beyond - len(found))

    def _read(self, before: Mark, last: Mark, newest: Report) -> list[Report]:
        if self._backlog is None:
            store = source.storage_of(self._context, newest)
            self._backlog = None if store is None else Backlog(store)
        found = None if self._backlog is None else self._backlog.after(before, last, LIMIT)
        if found is None:
            raise StoreError(UNREADABLE, "more reports wait for it on the job's storage, which cannot be read now")
        return found

    def _write(self) -> None:
        """The reports of an attempt together. What was recorded waits no more."""
        with self._changed:
            reports = list(self._waiting)
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            rows = list(group)
            self._check()
            if not self._opened:
                with self._asked("open"):
                    self._recorder.open(self._context, rows[0])
                self._opened, self._attempt = True, attempt
                self._check()  # a server may have taken its time
            elif attempt != self._attempt:
                with self._asked("restart"):
                    self._recorder.restart(rows[0])
                self._attempt = attempt
                self._check()
            with self._asked("write"):
                self._recorder.write(rows)
            self._written = source.mark_of(rows[-1])
            with self._changed:
                for row in rows:
                    if self._waiting and self._waiting[0] is row:
                        self._waiting.popleft()
            if self._turn is not None:
                self._turn.confirm(source.mark_of(rows[-1]))

    def _begin(self) -> None:
        """Before the first batch: its turn is waited for, and what the one before had no time for comes first."""
        with self._changed:
            first = self._waiting[0] if self._waiting else None
        if first is None:
            return
        found = source.storage_of(self._context, first)
        if found is None:
            self._began = True
            return
        if not self._has_turn:
            key = source.key_of(self._name, self._recorder.place(self._context), self._fed.ordinal)
            self._turn = self._turn or Turn(found, key, self._say, self._limits)
            self._turn.leaves = self._ended and not self._closes
            self._before = self._turn.begin(first.run or 0, self._follows or first.attempt or 0)
            self._has_turn = True
        else:
            self._check()
        missing = [] if self._before is None else self._left_by_those_before(found, self._before, first)
        self._began = True
        with self._changed:
            self._recorded = mark = self._before
            if is_recorded(mark, source.mark_of(self._waiting[0])):
                self._lost = 0  # those before it are recorded too
            left = [report for report in self._waiting if not is_recorded(mark, source.mark_of(report))]
            self._waiting = deque([*missing, *left])

    def _left_by_those_before(self, store: Store, mark: Mark, first: Report) -> list[Report]:
        """What they have stored and not recorded. Raises StorageSilent as long as another try makes sense: after what
        comes next it has no place any more.
        """
        assert self._turn is not None
        try:
            return self._turn.asked(partial(source.missing, store, mark, first))
        except StorageSilent as error:
            if self._ended or self._turn.is_kept:
                self._read_tries += 1
            if self._read_tries < (TRIES_AT_END if self._ended else READ_TRIES):
                raise
            self._say(f"what the one before has not recorded cannot be read ({error}); `tj history` has all")
            return []

    def _check(self) -> None:
        """Whether it is its turn still. Raises TurnOver."""
        if self._turn is not None:
            self._turn.check()

    def _look_s(self) -> float | None:
        """For how long nothing may be looked at; None: until something is to be done."""
        return None if self._turn is None else self._turn.look_s

    def _stop(self, over: TurnOver) -> None:
        """Another process goes on where this one has stopped. Nothing is lost here: that one has the same reports."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._lost = self._beyond = 0
        self._say(f"{over}: this one stops")
        try:
            if self._opened and not self._left_behind:
                self._recorder.leave()
        except BaseException as error:  # as above
            self._say(f"{type(error).__name__}: {str(error).strip()}")
        finally:
            self._leave_turn()

    def _leave_turn(self) -> None:
        """Whoever waits for it begins at once."""
        if self._turn is not None:
            self._turn.leave()

    def _close(self) -> None:
        try:
            if self._opened and self._closes:
                with self._asked("close"):
                    self._recorder.close(self._error)
            elif self._opened:
                with self._asked("leave"):
                    self._recorder.leave()
            elif self._closes and self._newest is not None:
                with self._asked("settle"):
                    self._recorder.settle(self._context, self._newest, self._error)
        except BaseException as error:  # as above
            self._say(f"{type(error).__name__}: {str(error).strip()}")

    @contextmanager
    def _asked(self, method: str) -> Iterator[None]:
        self._asking = method, time.monotonic()
        try:
            yield
        finally:
            self._asking = None

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            output.say(self._name, text)


def _place_of(recorder: Recorder, context: RunContext) -> str:
    try:
        return recorder.place(context)
    except Exception:  # asked again, and said, in the feed's own thread
        return ""
