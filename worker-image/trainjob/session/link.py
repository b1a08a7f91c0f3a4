"""This process's connection to its agent (`line`), opened on first use, and what the agent is told of the program's
end: its error, its exit code, that it leaves or becomes another program.

Called by `calls` (collectives, restore, log rows), `failure` (the error that ends the rank) and `rank` (the hello at
boot).
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import sys
import threading
from importlib import import_module
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Tuple, Type

from trainjob.session import context, errors, gloo_threads, stacks
from trainjob.session.line import Line
from trainjob_api import contract
from trainjob_api.rank_messages import Error, Leaving

_link: Optional[Line] = None
_booted = False
"""Whoever runs the program in this process tells of its end."""
_opening = threading.Lock()
_forked_from: Optional[int] = None


def link() -> Line:
    """This process's connection, opened by the first call. Raises NotInWorkerError outside a worker."""
    return _link if _link is not None else _open()


def present() -> Optional[Line]:
    """The connection, if something has been said over one; None: there is none, and none is opened."""
    return _link


def boot() -> None:
    """Open it, in a process whose end the caller tells. Raises NotInWorkerError, AgentLostError."""
    global _booted
    _booted = True
    link()


def _open() -> Line:
    global _link
    wish = os.environ.get(contract.ENV_IN_PROCESS)
    if wish and _forked_from is None and not os.environ.get(contract.ENV_AGENT_SOCKET):
        import_module(contract.IN_PROCESS_MODULE).init(name=None if wish == "1" else wish)
    with _opening:
        if _link is None:
            if _forked_from is not None:
                raise errors.NotInWorkerError(
                    f"This process (pid {os.getpid()}) is a forked child of rank process {_forked_from} and no rank "
                    "itself (a DataLoader worker?). "
                    "Call report(), log(), barrier() and get_checkpoint() in the rank's own process."
                )
            # Before the hello: whoever hears it may ask for our stacks, and the signal kills who does not handle it.
            stacks.make_readable()
            opened = Line(context.read(os.environ))
            close_at_exit()
            _link = opened
            if not _booted:
                # Nothing of ours runs this program: a launcher such as torchrun started it, or a rank has become it.
                gloo_threads.let_finish()
                _tell_of_exceptions()
                if contract.ENV_RANK_PID not in os.environ and not _hooked:
                    _tell_of_exits()
                    _tell_of_shutdown()
        return _link


_closes = False


def close_at_exit() -> None:
    """Say farewell at this process's exit, after all that registers to be run there later than this call."""
    global _closes
    if not _closes:
        _closes = True
        atexit.register(_close)


def _close() -> None:
    if _link is not None:
        _link.close(_left_with)


def _tell_of_exceptions() -> None:
    shown = sys.excepthook

    def tell(kind: Type[BaseException], error: BaseException, tb: Optional[TracebackType]) -> None:
        if not isinstance(error, KeyboardInterrupt):
            tell_agent(contract.END_EXCEPTION, error)
        shown(kind, error, tb)

    sys.excepthook = tell


_left_with: Optional[int] = None
"""The exit code that sys.exit() gave this process, behind a launcher."""


class _Exit(SystemExit):
    """What sys.exit() raises behind a launcher. Python asks nobody what to think of a SystemExit that nobody caught;
    it lets go of it once no frame of the program is left, and before it runs what is to run at exit.
    """

    def __del__(self) -> None:
        global _left_with
        if sys._getframe().f_back is None and threading.current_thread() is threading.main_thread():
            _left_with = exit_code(self)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"


def exit_code(error: SystemExit) -> int:
    """What Python makes of it."""
    if error.code is None:
        return 0
    if not isinstance(error.code, int):
        return 1
    return error.code & 0xFF if abs(error.code) <= sys.maxsize else 0xFF  # beyond what C can hold: -1


def _exit(status: Any = None, /) -> NoReturn:
    raise _Exit(status)


_hooked = False


def _tell_of_exits() -> None:
    global _hooked
    _hooked = True
    sys.exit = _exit
    # exit() and quit() raise on their own; a `raise SystemExit(3)` cannot be seen.
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":
        quitter.__call__ = lambda self, code=None: _exit(code)
    # os._exit() runs nothing at exit: without a word it would look like a kill.
    exits = os._exit

    def tell(status: int) -> NoReturn:
        line = _link
        if line is not None:
            line.close(status & 0xFF)
        exits(status)

    os._exit = tell
    # Nor is what becomes another program gone; the agent may look only once that one has ended. (os.execvp() and the
    # others are made of these two.)
    os.execv, os.execve = _told_before(os.execv), _told_before(os.execve)


def _told_before(replace: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(replace)
    def tell(*arguments: Any, **named: Any) -> Any:
        if _link is not None:
            _link.becomes()
        return replace(*arguments, **named)

    return tell


def _tell_of_shutdown() -> None:
    # Before Python waits for threads. Its own libraries register here too; one without it only tells less.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(tell_leaving, None)


def tell_leaving(code: Optional[int], raised: Optional[SystemExit] = None) -> None:
    """The script has ended: whatever keeps the process from now on is a thread, a child, or a clean-up. None: it is not
    known how. `raised`: by which its script ended itself. Says nothing where there is no agent, or in a forked child.
    """
    line = _link
    if line is None:
        return
    here = threading.current_thread()
    threads = [t.name for t in threading.enumerate() if t is not here and not t.daemon]
    processes = sys.modules.get("multiprocessing")
    children = [] if processes is None else [p.name for p in processes.active_children() if not p.daemon]
    word = Leaving(code, tuple(threads[:16]), tuple(children[:16]), *_where(code, raised))
    try:
        line.flush()
        line.post(word)
    except errors.AgentLostError:
        pass


def _where(code: Optional[int], raised: Optional[SystemExit]) -> Tuple[str, str]:
    """(what sys.exit() was given in words, from where it was called): of an end that is no success, and no signal's."""
    if raised is None or not code or code >= 128:
        return "", ""
    from trainjob.session import failure  # here: a rank that does not fail needs none of it

    raised.__traceback__ = failure.own_frames_dropped(raised.__traceback__)
    told = failure.describe(raised)
    return "" if isinstance(raised.code, int) else str(told["message"]), str(told["traceback"])


_ENDS = {errors.StorageError: contract.END_STORAGE, errors.StagingFullError: contract.END_FULL}
"""Errors of the library that are a cause of their own, where they end a rank."""


def tell_agent(kind: str, error: BaseException) -> None:
    """Send the error that ends this rank to the agent. A lost agent is not worth a second traceback; without an
    agent (a boot by hand) nobody is told.
    """
    from trainjob.session import failure  # here: a rank that does not fail needs none of it

    if kind == contract.END_EXCEPTION:
        kind = next((end for type_, end in _ENDS.items() if isinstance(error, type_)), kind)
    told = failure.describe(error)
    word = Error(kind, told["type"], told["message"], told["traceback"], told["communication"])
    try:
        line = link()
        line.flush()
        line.post(word)
    except errors.NotInWorkerError:
        pass
    except (errors.AgentLostError, ValueError) as trouble:
        print(f"trainjob: the agent could not be told of the error below: {trouble}", file=sys.stderr)


def disconnect() -> None:
    """Flush and forget the connection; the next call opens a new one. For processes that are many ranks in a row."""
    global _link
    with _opening:
        if _link is not None:
            _link.close(_left_with)
        _link = None
    stacks.forget()


def _after_fork_in_child() -> None:
    # The child shares the parent's socket: a frame from it would land in the middle of the parent's.
    global _link, _opening, _forked_from
    _opening = threading.Lock()
    if _link is not None:
        _forked_from = os.getppid()
        _link.abandon()
        _link = None


os.register_at_fork(after_in_child=_after_fork_in_child)
