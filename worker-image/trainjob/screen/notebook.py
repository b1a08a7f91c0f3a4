"""The view of a job in a Jupyter notebook: one output that is drawn anew while the job runs, and stays when it has
ended. The workers' lines go below it. The only module that knows IPython.

The first drawing comes from the caller's thread, in whose cell the output stands; a thread of the view's own draws it
anew, so that the last change before a pause is seen too.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from trainjob.screen import html
from trainjob.screen.changes import Kind
from trainjob.screen.panel import Moment, panel
from trainjob.screen.story import Clock, Story
from trainjob.screen.streams import write

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

DRAW_EVERY_S = 1.0
LINES_SHOWN = 12
"""Of what was said of the job, the newest."""
_KERNEL = "ZMQInteractiveShell"


class Output(Protocol):
    """One output of a cell."""

    def draw(self, html: str, text: str) -> None:
        """Show it, where it was shown before if it was; `text`: for those who show no HTML."""
        ...


class CellOutput:
    """IPython's, in the cell that runs."""

    def __init__(self) -> None:
        # By its name: the kernel has it, and nobody else needs it.
        self._handle: Any = importlib.import_module("IPython.display").DisplayHandle()
        self._shown = False

    def draw(self, html: str, text: str) -> None:
        """See `Output`."""
        show = self._handle.update if self._shown else self._handle.display
        self._shown = True
        show({"text/html": html, "text/plain": text}, raw=True)


def in_kernel() -> bool:
    """Whether a Jupyter kernel runs this program. IPython on a terminal is none: it has the panel."""
    ipython = sys.modules.get("IPython")  # not imported: who runs in a kernel has it
    shell = ipython.get_ipython() if ipython is not None else None
    return any(kind.__name__ == _KERNEL for kind in type(shell).__mro__)


class NotebookDisplay:
    """See `display.Display`."""

    def __init__(
        self,
        output: Output | None = None,
        out: TextIO | None = None,
        *,
        clock: Clock = time.time,
        every_s: float = DRAW_EVERY_S,
    ) -> None:
        self._output, self._out = output or CellOutput(), out or sys.stdout
        self._clock, self._started, self._every_s = clock, clock(), every_s
        self._story = Story(clock)
        self._said: deque[str] = deque(maxlen=LINES_SHOWN)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._draw_on, name="view of the job", daemon=True)

    def status(self, job: TrainJob) -> None:
        """Take it in."""
        with self._lock:
            for change in self._story.goes_on(job):
                if change.kind in (Kind.STATE, Kind.FAILURE):
                    self._say(change.text)
        self._begin()

    def line(self, text: str) -> None:
        """Below the view, as the workers wrote it."""
        write(self._out, text)

    def note(self, text: str) -> None:
        """A line of the view."""
        with self._lock:
            self._say(text)
        self._begin()

    def close(self) -> None:
        """The last state stays in the notebook."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._draw(last=True)

    def _begin(self) -> None:
        """With the first thing to show; does nothing when it has begun."""
        if self._thread.ident is None:
            self._draw()
            self._thread.start()

    def _say(self, text: str) -> None:
        self._said.append(f"+{self._clock() - self._started:.1f}s {text}")

    def _draw_on(self) -> None:
        while not self._closed.wait(self._every_s):
            self._draw()

    def _draw(self, *, last: bool = False) -> None:
        """What cannot be drawn, or the notebook does not take, ends no job: it is said once, and nothing is drawn any
        more.
        """
        if self._broken:
            return
        try:
            self._show(last=last)
        except Exception as error:  # of the notebook's own machinery, whatever it raises
            self._broken = True
            write(self._out, f"the view of the job cannot be shown: {type(error).__name__}: {error}")

    def _show(self, *, last: bool) -> None:
        with self._lock:
            job, pace, said = self._story.job, self._story.pace, list(self._said)
            moment = Moment(now=self._clock(), started=self._started, last=last)
        if job is not None:
            text = "\n".join([job.metadata.name, *panel(job, pace, moment), *said])
            self._output.draw(html.view(job, pace, moment, said), text)
        elif said:  # it never began: what was said is all there is
            self._output.draw(html.lines(said), "\n".join(said))
