"""Ctrl-C, SIGTERM and SIGHUP while a job of this machine runs and ends: they stop it, and come neither between its end
and what that leaves (its record, no folder, no lock), nor between that and its exit code.

`backend` has one for its job; who tells how the job ended (the command line, an in-process job's two sides) has it for
as long as that takes, and `backend` finds it. Nobody has to kill a process that stands still meanwhile: who is not
heard, and presses again, ends it as if there were none of this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_Handler = Callable[[int, FrameType | None], object]
_DEFAULTS: dict[int, _Handler | int] = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
PATIENCE_S = 3.0
"""So long one waits to be heard. Another that comes later than that is answered as if none of this were there."""


class Interrupts:
    """Of the main thread; elsewhere it is never told of any. Begins by holding them."""

    def __init__(self, *, ends: bool = False) -> None:
        """`ends`: this process ends when it is over, and its end is the answer to what waits then."""
        self.held = True
        """They wait. Setting it is the last moment at which one can come."""
        self._ends = ends
        self._late: list[int] = []
        self._since = 0.0
        """When the first of those that wait came."""
        self._own: dict[int, _Handler] = {}
        """The program's own handlers."""
        self._pid = os.getpid()
        self._over = False

    def let_through(self) -> None:
        """From now on the next one, or one that waits, raises KeyboardInterrupt, and those after it are held again.
        The program's own handlers are called.
        """
        self.held = False
        while self._late:
            self._come(self._late.pop(0), None)

    def forget(self) -> None:
        """What waits is answered; handlers of the program's own are called all the same."""
        self._late = [number for number in self._late if number in self._own]

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self._over or os.getpid() != self._pid:  # somebody has kept this handler, or it is a fork's
            self._hand_on(number, frame)
        elif not self.held:
            if number in self._own:
                self._own[number](number, frame)
            else:
                self.held = True
                raise KeyboardInterrupt(signal.Signals(number).name)
        elif self._late and time.monotonic() - self._since >= PATIENCE_S:
            self._late.clear()
            self._restore()
            self._hand_on(number, frame)
        else:
            self._since = self._since if self._late else time.monotonic()
            self._late.append(number)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        """As if there were none of this."""
        answer = self._own.get(number) or _DEFAULTS[number]
        if callable(answer):
            answer(number, frame)
        else:
            signal.signal(number, answer)
            signal.raise_signal(number)

    def _begin(self) -> None:
        """One that is ignored (nohup), or left to what is no Python, stays so."""
        for number, default in _DEFAULTS.items():
            before = signal.getsignal(number)
            if before != default:
                if not callable(before):
                    continue
                self._own[number] = before
            signal.signal(number, self._come)

    def _restore(self) -> None:
        """One that comes meanwhile waits with the others."""
        self.held = True
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) == self._come:
                signal.signal(number, self._own.get(number) or default)
        self._over = True

    def _end(self, error: BaseException | None) -> None:
        """What waits comes now: all where the job did not end, else what this was no answer to."""
        self._restore()
        answered = error is None or isinstance(error, KeyboardInterrupt)
        for late in self._late:
            if late in self._own or not answered or (late != signal.SIGINT and not self._ends):
                signal.raise_signal(late)


_current: Interrupts | None = None


@contextlib.contextmanager
def interrupts(*, ends: bool = False) -> Iterator[Interrupts]:
    """Those of whoever has them already, held or not as before when this is over; else one's own. `ends`: as there."""
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
    elif _current is not None:
        held = _current.held
        try:
            yield _current
        finally:
            _current.held = held
    else:
        _current, error = Interrupts(ends=ends), None
        try:
            _current._begin()
            yield _current
        except BaseException as raised:
            error = raised
            raise
        finally:
            ours, _current = _current, None
            ours._end(error)
