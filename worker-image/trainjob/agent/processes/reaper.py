"""Collects the ends of all child processes, orphans included (the agent is process 1 of its container).

Called by `ranks` and `storage`. One SIGCHLD handler, no thread per child; nothing else in the agent may wait for a
child.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from trainjob.agent.processes import trackers
from trainjob.agent.processes.memory import OomKills

OnEnd = Callable[[int], None]
GROUP_POLL_S = 0.01
GROUP_WAIT_S = 30.0
"""How long a killed process group may take to vanish: a process inside a driver call dies when that returns."""


class Reaper:
    """`watch` a child; its wait status arrives exactly once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: Dict[int, Tuple[OnEnd, bool]] = {}
        self.kills = OomKills()
        """Of the kernel's, for whoever's child ended by SIGKILL that nobody here has sent."""
        loop.add_signal_handler(signal.SIGCHLD, self.collect)

    def watch(self, pid: int, on_end: OnEnd, *, group: bool) -> None:
        """Call in the same turn of the loop as the fork. `group`: the child leads a process group that dies with it."""
        self._watched[pid] = (on_end, group)

    def collect(self) -> None:
        """Reap whatever has ended."""
        for pid in list(self._watched):
            # Look before reaping: while the leader is a zombie its number cannot become another process group.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._end(pid)
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            self._end(found.si_pid)

    def _end(self, pid: int) -> None:
        on_end, group = self._watched.pop(pid, (_orphan, False))
        if group:
            kill_group(pid)
        _, status = os.waitpid(pid, 0)
        on_end(status)


def is_our_child(pid: int) -> bool:
    """Alive, so that its end will be told to who watches it from this turn on."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def was_killed(status: int) -> bool:
    """By SIGKILL."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _orphan(status: int) -> None:
    """A grandchild that lost its parent: nobody asks for its status."""


class Process(NamedTuple):
    """A process that is no child of ours, told from a later one with its number by the time of its birth."""

    pid: int
    born: bytes

    @classmethod
    def of(cls, pid: int) -> Optional[Process]:
        """The one that has this number now; None: it is gone."""
        born = _born(pid)
        return None if born is None else cls(pid, born)

    def is_there(self) -> bool:
        """Whether it still lives."""
        return _born(self.pid) == self.born

    def is_ending(self) -> bool:
        """Whether it is gone, or on its way out: a process that became another program is not."""
        fields = _stat(self.pid)
        return fields is None or fields[19] != self.born or bool(int(fields[6]) & _PF_EXITING)

    def kill(self) -> None:
        """SIGKILL, if it still lives."""
        if self.is_there():
            signal_process(self.pid, signal.SIGKILL)


_PF_EXITING = 0x4
"""Of the kernel's flags of a process: its files are closed after this is set."""


def _stat(pid: int) -> Optional[List[bytes]]:
    """From the state on; None: it is no more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields


def _born(pid: int) -> Optional[bytes]:
    fields = _stat(pid)
    return None if fields is None else fields[19]


def signal_group(pid: int, number: int) -> bool:
    """Send to a whole process group; False when nothing of it is left."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Something in the group changed its user; what may be signalled was.
        return True
    return True


def kill_group(pid: int) -> None:
    """SIGKILL to a whole process group; resource trackers stay until `group_gone`."""
    if not trackers.kill_others(pid):
        signal_group(pid, signal.SIGKILL)


def signal_process(pid: int, number: int) -> None:
    """Send to one process, if it is there and may be signalled."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    return _in_mask(f"/proc/{pid}/status", b"SigCgt:", number)


def deaf_threads(pid: int, number: int) -> Set[int]:
    """Threads of a process that hold off a signal; one that is inside its handler does."""
    folder = f"/proc/{pid}/task"
    try:
        threads = [int(name) for name in os.listdir(folder)]
    except OSError:
        return set()
    return {thread for thread in threads if _in_mask(f"{folder}/{thread}/status", b"SigBlk:", number)}


def _in_mask(path: str, mask: bytes, number: int) -> bool:
    try:
        with open(path, "rb") as file:
            (bits,) = [line.split()[1] for line in file if line.startswith(mask)]
    except (OSError, ValueError):
        return False
    return bool(int(bits, 16) >> (number - 1) & 1)


async def group_gone(pid: int) -> bool:
    """Wait until nothing of a killed group is left (GROUP_WAIT_S at most), trackers included."""
    began = asyncio.get_running_loop().time()
    while signal_group(pid, 0):
        waited = asyncio.get_running_loop().time() - began
        if waited > GROUP_WAIT_S:
            return False
        if waited > trackers.SPARED_S:
            signal_group(pid, signal.SIGKILL)
        await asyncio.sleep(GROUP_POLL_S)
    return True
