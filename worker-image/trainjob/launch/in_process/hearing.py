"""What the companion says: its answer, and before it what there is to show, where a display is to have that. Libraries
may print on the same pipe as they are imported: what is no line of the companion's is passed over.

`Guest` has one. A thread reads: with a display beside the loop that trains, without one when the answer is asked for.
In the main thread a Ctrl-C that comes as something is read would lose it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from typing import IO

from trainjob.launch.local.interrupts import interrupts
from trainjob.screen import streams
from trainjob.screen.display import Display
from trainjob_api.v1alpha1 import TrainJob

_POLL_S = 0.1
_PIECE = 65536
_SHOWN = frozenset({"status", "line", "note"})
_ANSWERS = frozenset({"job", "refused"})


class Hearing:
    """Reads the companion's standard output to its end."""

    def __init__(self, stream: IO[bytes], display: Display | None) -> None:
        self._stream, self._display = stream, display
        self._last: dict[str, object] = {}
        self._broken = False
        self._over = False
        # Not the thread's end: before Python 3.13 a Ctrl-C inside join() makes a thread that lives an ended one. Nor an
        # Event: one that comes between its lock and what the lock is for keeps it locked.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="what the companion says", daemon=True)
        if display is not None:
            self._thread.start()

    def answer(self, on_interrupt: Callable[[], None]) -> dict[str, object]:
        """The last line, once the companion has ended its words; Ctrl-C meanwhile calls that."""
        with interrupts() as signals:
            if self._thread.ident is None:
                self._thread.start()
            while not self._over:
                try:
                    signals.let_through()
                    self._wait()
                except KeyboardInterrupt:
                    on_interrupt()
                finally:
                    signals.held = True
            return self._last

    def close(self) -> None:
        """The companion has ended."""
        while self._thread.ident is not None and not self._over:
            self._wait()
        self._stream.close()

    def _wait(self) -> None:
        """Until all is read, for a moment at most."""
        with contextlib.suppress(queue.Empty):
            self._wakes.get(timeout=_POLL_S)

    def _read(self) -> None:
        rest = b""
        try:
            while piece := os.read(self._stream.fileno(), _PIECE):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._take(line)
        finally:
            self._over = True
            self._wakes.put(None)

    def _take(self, line: bytes) -> None:
        said = _parsed(line)
        if said.keys() & _ANSWERS:
            self._last = said
        elif self._display is not None and said.keys() & _SHOWN and not self._broken:
            self._draw(self._display, said)

    def _draw(self, display: Display, said: dict[str, object]) -> None:
        try:
            _show(display, said)
        except Exception as error:  # of the display: what trains does not end by it, and the pipe is read on
            self._broken = True
            with contextlib.suppress(Exception):  # nor by a standard error that is closed
                streams.say(f"the job goes on unseen: its view cannot be drawn ({error!r})")


def _parsed(line: bytes) -> dict[str, object]:
    """Empty: somebody else's."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _show(display: Display, said: dict[str, object]) -> None:
    if "status" in said:
        display.status(TrainJob.model_validate(said["status"]))
    elif "line" in said:
        display.line(str(said["line"]))
    else:
        display.note(str(said["note"]))
