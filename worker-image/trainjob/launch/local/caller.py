"""The caller's side of a job that runs on this machine: its control side drives it in a thread of its own, and here, in
the caller's thread, events are handed on and Ctrl-C is answered.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainjob.launch.local.drive import Driver, Stop
from trainjob.launch.local.interrupts import Interrupts, interrupts
from trainjob.launch.local.registry.recorder import Recorder
from trainjob.launch.local.registry.records import STOPPING
from trainjob.launch.outcome.log_choice import AGENT
from trainjob.screen.asked import Asker, in_words_of, job_in_words_of
from trainjob_api.v1alpha1 import TrainJob


@dataclass(frozen=True, kw_only=True)
class LocalEvent:
    """Something to show."""

    kind: Literal["status", "line", "event", "note", "look"]
    """status: `job` changed; line: a worker wrote `text`; event: `text` is a Kubernetes event's; note: `text` is the
    launcher's own; look: `job` is as it was, and its storage may have more of it than at its last change.
    """
    text: str = ""
    job: TrainJob | None = None
    pod: str | None = None
    """Whose output a line is."""
    warning: bool = False
    """An event of type Warning."""


Listener = Callable[[LocalEvent], None]

LINES_WAITING = 64 << 20
"""Bytes of lines that wait for a listener; then pods' output waits in its pipes, and agents know what to do with ranks
whose output nobody takes.
"""
_A_LINE = 256
"""Bytes of one that are not its text."""


class Caller:
    """The caller's side of a running job: hands events on, answers Ctrl-C."""

    def __init__(self, driver: Driver, tell: Listener, recorder: Recorder, asker: Asker) -> None:
        self._driver = driver
        self._asker = asker
        self._tell = tell
        self._recorder = recorder
        self._events: queue.SimpleQueue[LocalEvent | None] = queue.SimpleQueue()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One for each event: what is waited for may be lost to a Ctrl-C, and no event may."""
        self._put_in = self._taken_out = 0
        """Bytes of lines; each is counted in one thread."""
        driver.is_full = lambda: self._put_in - self._taken_out > LINES_WAITING
        self._untold: LocalEvent | None = None
        """Recorded, and the listener has not been called with it."""
        self._thread = threading.Thread(target=self._drive, name="trainjob-local", daemon=True)
        self._result: TrainJob | None = None
        self._error: BaseException | None = None

    def note(self, text: str) -> None:
        """Show that; from any thread."""
        self._put(LocalEvent(kind="note", text=text))

    def run(self) -> tuple[TrainJob, bool]:
        """(final object, whether it was interrupted)."""
        trouble: BaseException | None = None
        interrupted = False
        with interrupts() as signals, self._joined():
            self._thread.start()
            while True:
                try:
                    signals.let_through()
                    if not self._listen(signals, mute=trouble is not None):
                        break
                except KeyboardInterrupt:
                    signals.held = True  # the listener may have raised it
                    self._driver.stop(Stop.AT_ONCE if interrupted else Stop.CLEANLY)
                    text = (
                        "killing the workers"
                        if interrupted
                        else "stopping: ranks end, what is staged is stored (again: kill at once)"
                    )
                    interrupted = True
                    self.note(text)
                    if self._is_over:  # its end may have been taken out of the queue, and not been looked at
                        self._put(None)
                except Exception as error:  # of the user's listener: the job must not go on unseen
                    signals.held = True
                    trouble = trouble or error
                    self._driver.stop(Stop.CLEANLY)
                finally:
                    signals.held = True
        if trouble is not None:
            raise trouble
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result, (interrupted or self._driver.asked_to_stop) and not self._result.status.finished

    @contextlib.contextmanager
    def _joined(self) -> Iterator[None]:
        """However the caller's side ends (a signal handler of the program's own raises something), the folder below the
        agents stays until they are gone.
        """
        try:
            yield
        finally:
            if self._thread.ident is not None:
                if self._thread.is_alive() and not self._is_over:
                    self._driver.stop(Stop.AT_ONCE)
                self._thread.join()

    @property
    def _is_over(self) -> bool:
        """The driver has ended, however."""
        return self._error is not None or self._result is not None

    def _put(self, event: LocalEvent | None) -> None:
        self._events.put(event)
        self._wakes.put(None)

    def _listen(self, signals: Interrupts, *, mute: bool) -> bool:
        """Hand the next event on; False: the driver ended. A Ctrl-C comes as one is waited for, and in the listener."""
        if self._untold is None:
            if self._events.empty():
                try:
                    self._wakes.get(timeout=self._recorder.due_s)
                except queue.Empty:
                    signals.held = True
                    self._recorder.catch_up()
                    return True
            signals.held = True
            if self._events.empty():  # that was for one that came earlier
                return True
            event = self._events.get()
            if event is None:
                return False
            self._taken_out += _size(event)
            self._record(event)
            self._untold = event
            self._recorder.catch_up()  # events that come without a pause are never waited for
        if not mute:
            signals.let_through()
        event, self._untold = self._untold, None
        if not mute:
            self._tell(event)
        return True

    def _record(self, event: LocalEvent) -> None:
        if event.kind == "line":
            self._recorder.line(event.text)
        elif event.kind == "status" and event.job is not None:
            self._recorder.status(event.job)

    def _drive(self) -> None:
        try:
            self._result = job_in_words_of(self._asker, self._driver.run(self._publish))
        except BaseException as error:  # the thread's top: the caller raises it
            self._error = error
        finally:
            self._put(None)

    def _publish(self, kind: Literal["status", "line", "event", "note", "look"], **content: Any) -> None:
        event = LocalEvent(kind=kind, **content)
        if event.job is not None:
            event = replace(event, job=_as_here(job_in_words_of(self._asker, event.job)))
        elif event.text.startswith(AGENT):  # a rank's own lines are its script's
            event = replace(event, text=in_words_of(self._asker, event.text))
        self._put_in += _size(event)
        self._put(event)


def _size(event: LocalEvent) -> int:
    return len(event.text) + _A_LINE if event.kind == "line" else 0


def _as_here(job: TrainJob) -> TrainJob:
    """On this machine a job is not suspended: that is how it is stopped."""
    if job.status.phase != "Suspended":
        return job
    return job.model_copy(update={"status": job.status.model_copy(update={"phase": STOPPING})})
