"""A script as the rank of a job in its own process: `tj run --in-process train.py`, and `trainjob.init()` in a plain
`python train.py`.

The first knows how its script ends. The second begins in the middle of a program: it is told of an exception that
nobody caught by sys.excepthook, of sys.exit(n) by a wrapper around that function, and of the end by atexit; what leaves
by `raise SystemExit(n)` looks like a good end to it.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trainjob.launch import job as jobs
from trainjob.launch.in_process.guest import Guest
from trainjob.launch.in_process.places import opening, place
from trainjob.screen import notebook, streams
from trainjob.screen.asked import Asker

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from trainjob.launch.in_process.guest import End
    from trainjob_api.v1alpha1 import TrainJob


def run(job: TrainJob, command: list[str], *, debug: bool = False, asker: Asker = Asker.PYTHON) -> End | None:
    """Run `script.py arguments` or `-m module arguments` as this process's `__main__`: how the job ended (None on
    other ranks than 0). An exception of the script was printed as Python would; `debug`: then pdb stands where it was
    raised.
    """
    from trainjob.session import rank

    guest = Guest(job, place(os.environ), asker=asker)
    guest.begin()
    error: BaseException | None = None
    hook = sys.excepthook
    sys.excepthook = functools.partial(_unless_ended, guest, functools.partial(_post_mortem, hook) if debug else hook)
    try:
        rank.main(["--", *command])
    except (SystemExit, KeyboardInterrupt) as raised:  # the script's own error is told and printed by then
        error = raised
    finally:
        sys.excepthook = hook
    return guest.close(error)


def _unless_ended(
    guest: Guest, hook: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What a call of a rank says that was told to end is nobody's mistake."""
    if not guest.tells_of_its_end(error):
        hook(kind, error, trace)


def _post_mortem(
    shown: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    import pdb

    shown(kind, error, trace)
    pdb.post_mortem(trace)


class _Script:
    """The program that called init(), as a job."""

    def __init__(self, name: str | None, storage: str | None) -> None:
        script = sys.argv[0] or "python"
        self._job = jobs.from_script(
            jobs.ScriptJob(command=(sys.executable, script), name=name, storage=storage or jobs.DEFAULT_STORAGE)
        )
        where = place(os.environ)
        self._display = notebook.NotebookDisplay() if where.rank == 0 and notebook.in_kernel() else None
        if self._display is not None:
            self._display.note(opening(self._job, where))
        elif where.rank == 0:
            streams.say(opening(self._job, where))
        self._guest = Guest(self._job, where, display=self._display)
        # A debugger that runs the script takes its exceptions and its end: then nobody knows whether it completed.
        self._error: BaseException | None = KeyboardInterrupt() if _debugged() else None
        self._last = getattr(sys, "last_value", None)

    def begin(self) -> None:
        self._guest.begin()
        self._exit, self._hook = sys.exit, sys.excepthook
        sys.exit, sys.excepthook = self._exits, self._raised
        # After the link's own, so before it: what the ranks logged goes first.
        atexit.register(self._ended)

    def _exits(self, code: Any = None) -> NoReturn:
        self._error = SystemExit(code)
        self._exit(code)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._error = error
        _unless_ended(self._guest, self._hook, kind, error, trace)

    def _ended(self) -> None:
        last = getattr(sys, "last_value", None)
        if self._error is None and last is not self._last:  # shown by a hook that the program has put in place of ours
            self._error = last
        was_ended = self._guest.tells_of_its_end(self._error)
        end = self._guest.close(self._error)
        if self._display is not None:
            if end is not None:
                self._display.status(end.job)
            self._display.close()
        if end is not None and (was_ended or self._error is None) and not end.job.status.holds("Complete"):
            name, failed = self._job.metadata.name, end.job.status.held("Failed")
            streams.say(f"{name} failed: {failed.message}" if failed else f"{name} was stopped")


def _debugged() -> bool:
    """Whether `python -m pdb` or the like runs this program."""
    frame = sys._getframe()
    while frame is not None:
        if os.path.basename(frame.f_code.co_filename) == "bdb.py":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_script: _Script | None = None


def begin(name: str | None = None, storage: str | None = None) -> None:
    """Make this process the rank of a job; a second call does nothing."""
    global _script
    if _script is None:
        streams.have_all()
        made = _Script(name, storage)
        made.begin()
        _script = made
