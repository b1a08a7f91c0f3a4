"""The live panel on a terminal: worker output scrolls above, the job's state stays below. The only module that knows
rich.

NO_COLOR is respected by rich itself; where the terminal's encoding has no box characters, plain ones are drawn.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from trainjob.screen.changes import Kind
from trainjob.screen.panel import WARNING, Moment, panel
from trainjob.screen.story import Clock, Story
from trainjob.screen.streams import encodable, put

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

REDRAWS_PER_S = 8

STYLES = {
    "Complete": "green",
    "Failed": "red",
    "Restarting": "yellow",
    "Suspended": "yellow",
    "Stopping": "yellow",
    "Running": "cyan",
}


@contextlib.contextmanager
def without_echo_of_control_keys() -> Iterator[None]:
    """The terminal writes `^C` at the end of the panel's last line, which wraps, and the panel would be redrawn a line
    too low: its upper border would stay above.
    """
    try:
        mine = os.tcgetpgrp(0) == os.getpgrp()  # who sets a terminal from the background is stopped
        before = termios.tcgetattr(0)
    except (termios.error, OSError):  # no terminal
        mine = False
    if not mine:
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(0, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):  # it was closed
            if os.tcgetpgrp(0) == os.getpgrp():  # of a job in the background the shell has set it back
                termios.tcsetattr(0, termios.TCSANOW, before)


class _Terminal:
    """A terminal as rich writes to it: nothing that befalls it ends the job or the thread that draws."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """All of it at once: what rich does not get rid of it would write again."""
        put(self._stream, text)

    def flush(self) -> None:
        """Nothing waits."""


class LiveDisplay:
    """See `display.Display`."""

    def __init__(self, console: Console | None = None, clock: Clock = time.time) -> None:
        self._console = console or Console(file=cast(TextIO, _Terminal(sys.stdout)), highlight=False)
        self._clock, self._started = clock, clock()
        self._story = Story(clock)
        self._live = Live(console=self._console, refresh_per_second=REDRAWS_PER_S, get_renderable=self._draw)
        self._echo = contextlib.ExitStack()

    def status(self, job: TrainJob) -> None:
        """Redraw; what should stay readable afterwards scrolls by as a line."""
        self._start()
        for change in self._story.goes_on(job):
            if change.kind in (Kind.STATE, Kind.FAILURE):
                self._print(change.text, "red" if change.kind is Kind.FAILURE else "bold")

    def line(self, text: str) -> None:
        """The worker's own colours are kept, its cursor movements are not."""
        self._start()
        self._console.print(Text.from_ansi(encodable(text, self._console.encoding)), soft_wrap=True)

    def note(self, text: str) -> None:
        """A line above the panel."""
        self._print(text, "bold")

    def close(self) -> None:
        """The last state stays on the screen."""
        self._live.stop()
        self._echo.close()

    def _start(self) -> None:
        """With the first thing to show; does nothing when it has begun."""
        if not self._live.is_started:
            self._echo.enter_context(without_echo_of_control_keys())
            self._live.start()

    def _print(self, text: str, style: str) -> None:
        self._start()
        text = encodable(text, self._console.encoding)
        self._console.print(Text(f"tj  | +{self._clock() - self._started:.1f}s {text}", style=style), soft_wrap=True)

    def _draw(self) -> Panel | Text:
        job = self._story.job
        if job is None:
            return Text("starting ...")
        ascii_only = not (self._console.encoding or "").lower().startswith("utf")
        lines = panel(job, self._story.pace, Moment(now=self._clock(), started=self._started, ascii_only=ascii_only))
        style = STYLES.get(job.status.phase or "", "white")
        text = Text(encodable("\n".join(lines), self._console.encoding), no_wrap=True, overflow="ellipsis")
        text.highlight_regex(rf"(?m)^{WARNING}.*$", "bold red")
        return Panel(
            text,
            title=Text(job.metadata.name),
            title_align="left",
            border_style=style,
            box=box.ASCII if ascii_only else box.ROUNDED,
        )
