"""Ctrl-C, SIGTERM and SIGHUP while a job of this machine runs and ends: they stop it, and come neither between its end
and what that leaves (its record, no folder, no lock), nor between that and its exit code.

`backend` has one for its job; who tells how the job ended (the command line, an in-process job's two sides) has it for
as long as that takes, and `backend` finds it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_Handler = Callable[[int, FrameType | None], object]
_DEFAULTS: dict[int, _Handler | int] = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class Interrupts:
    """Of the main thread; elsewhere it is never told of any. Begins by holding them."""

    def __init__(self) -> None:
        self.held = True
        """They wait. Setting it is the last moment at which one can come."""
        self._late: list[int] = []
        self._own: dict[int, _Handler] = {}
        """The program's own handlers."""

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
        if self.held:
            self._late.append(number)
        elif number in self._own:
            self._own[number](number, frame)
        else:
            self.held = True
            raise KeyboardInterrupt(signal.Signals(number).name)

    def _begin(self) -> None:
        """One that is ignored (nohup), or left to what is no Python, stays so."""
        for number, default in _DEFAULTS.items():
            before = signal.getsignal(number)
            if before != default:
                if not callable(before):
                    continue
                self._own[number] = before
            signal.signal(number, self._come)

    def _end(self, error: BaseException | None) -> None:
        """What waits is answered by how the job ended; where it did not end, or by a handler of the program's own, it
        comes now.
        """
        self.held = True
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) == self._come:
                signal.signal(number, self._own.get(number) or default)
        answered = error is None or isinstance(error, KeyboardInterrupt)
        for late in self._late:
            if late in self._own or not answered:
                signal.raise_signal(late)


_current: Interrupts | None = None


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Those of whoever has them already, else one's own."""
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
    elif _current is not None:
        yield _current
    else:
        _current, error = Interrupts(), None
        try:
            _current._begin()
            yield _current
        except BaseException as raised:
            error = raised
            raise
        finally:
            ours, _current = _current, None
            ours._end(error)
