"""Background work of one owner (an attempt, or the agent): a fault in it ends the owner, and it ends with its owner.

A task that dies in silence while something waits for it is a hang, so no part of the agent starts one in another way.
Cancellation is no fault. `explain` says a fault to people: what happened, and what is likely behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import traceback
from typing import Any, Awaitable, Callable, Coroutine, Optional, Set, TypeVar

T = TypeVar("T")
OnFault = Callable[[BaseException], None]


class Background:
    """Tasks that nobody need await. Keeps them from being collected while they run."""

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault = on_fault
        self._tasks: Set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start it now."""
        self.task(work)

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start it now; for who may want to cancel or await it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """End what still runs."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fault(error)


async def within(awaited: Awaitable[T], timeout_s: Optional[float]) -> T:
    """What comes of it; what takes longer is cancelled. Raises asyncio.TimeoutError. Whichever way this ends, and also
    where the caller is cancelled, what was waited for has ended before.

    `asyncio.wait_for` of Pythons before 3.12 forgets that the caller was cancelled where what it waits for ends in the
    same turn: a loop around it then goes on for ever.
    """
    task = asyncio.ensure_future(awaited)
    # Whether anybody is left to hear of its fault or not.
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    try:
        await asyncio.wait([task], timeout=timeout_s)
        is_late = not task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if is_late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


def of_the_agent(error: BaseException) -> None:
    """An `on_fault` for work that outlives its attempt: the loop's handler, which ends the agent."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "in the background", "exception": error, "task": None}
    )


def of_a_thread(loop: asyncio.AbstractEventLoop) -> OnFault:
    """The same for a thread of the agent that owns this loop."""

    def tell(error: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            loop.call_soon_threadsafe(of_the_agent, error)

    return tell


_LIKELY = {
    errno.ENOSPC: "The volume is full: free some space, or save less; on a cluster "
    "spec.checkpoint.staging.sizeLimit gives the pod more room.",
    errno.EDQUOT: "The quota of the volume is used up: give the pod more room.",
    errno.EROFS: "The volume is read-only: the kernel makes it so after an error of the disk.",
    errno.EIO: "The disk under the volume, or the network to it, fails.",
    errno.EMFILE: "The agent may open no more files: raise the limit (ulimit -n) of the container.",
    errno.ENFILE: "The node may open no more files.",
    errno.EAGAIN: "The pod may start no more processes or threads: raise its pids limit, or start fewer.",
    errno.ENOMEM: "There is no memory left: raise the pod's memory limit.",
}


def explain(error: BaseException) -> str:
    """One or two sentences."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error.__cause__, OSError):
        return f"The agent could not continue: {error}"  # made of it, for people
    number = error.errno if isinstance(error, OSError) else None
    likely = _LIKELY.get(number or 0, "This is a fault of the agent: its log has the traceback.")
    return f"The agent could not continue: {what}. {likely}"


def where(error: BaseException) -> str:
    """The traceback, for the log."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
