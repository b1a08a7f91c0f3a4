"""A run's callbacks, and what they have heard: reports in their order, each failure once, the end once.

Used by whatever follows a run in the user's process: `fitting`, `in_process.fit`, `cluster.cluster_run` and `tj run`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch import job as jobs
from trainjob.launch.outcome import verdict
from trainjob.launch.outcome.reports import Follower

if TYPE_CHECKING:
    from trainjob.checkpoint.stores.store import Store
    from trainjob.launch.handover.callbacks import Report, RunContext, UserCallback
    from trainjob_api.v1alpha1 import Failure, TrainJob

POLL_S = 0.5
BUCKET_POLL_S = 5.0
"""Between two looks at a bucket, which cost requests."""
LAST_TRIES = 4
"""Looks at the end, where the storage is away."""


class Hearers:
    """`callbacks` of one run."""

    def __init__(self, callbacks: Sequence[UserCallback], context: RunContext) -> None:
        self._callbacks, self._context = tuple(callbacks), context
        self._failure: Failure | None = None
        self._untold: deque[tuple[UserCallback, Report]] = deque()
        """Who has yet to hear of what: a Ctrl-C may end a call."""

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def stored_in(self, store: Store) -> None:
        """The job's folder, where the run's path alone does not lead to it."""
        if self._context.store is None:
            self._context = replace(self._context, store=store)

    def reports(self, reports: Iterable[Report]) -> None:
        """Those that are new. What a callback raises ends the telling of them, a Ctrl-C puts it off."""
        self._untold.extend((callback, report) for report in reports for callback in self._callbacks)
        try:
            while self._untold:
                callback, report = self._untold.popleft()
                callback.on_report(self._context, report)
        except Exception:
            self._untold.clear()
            raise

    def failure(self, job: TrainJob) -> Failure | None:
        """What ended an attempt, if it was not heard of yet."""
        found = job.status.last_failure
        if found is None or found == self._failure:
            return None
        self._failure = found
        self.exception(-1 if found.rank is None else found.rank, verdict.failed_error(found))
        return found

    def exception(self, rank: int, error: Exception) -> None:
        """What a rank raised."""
        for callback in self._callbacks:
            callback.after_exception(self._context, {rank: error})

    @contextmanager
    def of_the_end(self) -> Iterator[None]:
        """Around the run: all hear of its end, whatever one of them raises."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            troubles = [self._told(callback, error) for callback in self._callbacks]
            trouble = next(filter(None, troubles), None)
            if trouble is not None and error is None:
                raise trouble

    def _told(self, callback: UserCallback, error: BaseException | None) -> Exception | None:
        try:
            callback.after_run(self._context, error)
        except Exception as raised:
            return raised
        return None


class Polled:
    """The reports in a job's folder, looked at now and then."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pace = BUCKET_POLL_S if jobs.is_s3(folder) else POLL_S
        self._follower: Follower | None = None
        self._polled: float | None = None

    def new(self, run: int | None, attempt: int) -> list[Report]:
        """Nothing before it is time to look again."""
        now = time.monotonic()
        if self._polled is not None and now - self._polled < self._pace:
            return []
        self._polled = now
        return self._poll(run, attempt, final=False)

    def last(self, run: int | None, attempt: int) -> list[Report]:
        """The job is over. A storage that is away for a moment is looked at again."""
        found: list[Report] = []
        for left in reversed(range(LAST_TRIES)):
            found += self._poll(run, attempt, final=True)
            if self._follower is None or not self._follower.failed or not left:
                break
            time.sleep(POLL_S)
        return found

    def _poll(self, run: int | None, attempt: int, *, final: bool) -> list[Report]:
        if self._follower is None:
            try:
                self._follower = Follower(open_store(self._folder, BUCKET_POLL_S))
            except StoreError:
                return []  # the job itself says what is wrong with its storage
        return self._follower.poll(run, attempt, final=final)


def place(job: TrainJob) -> tuple[int | None, int]:
    """(run, attempt) of a job as it is now."""
    attempt = job.status.attempt
    return (None, 1) if attempt is None else (attempt.run, attempt.number)
