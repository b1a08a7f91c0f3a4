"""Where a rank stands: the stacks of its threads and its collectives, as it tells them itself (`asking`); of one that
does not answer, the stack of its main thread, which faulthandler writes into a file when the agent sends STACK_SIGNAL.

Called by `member` when other ranks wait for one of ours, and by `tj stack`. The signal ends a process that does not
handle it, so it goes to no other than the process that spoke to us as this rank (behind a shell or a launcher that is
not the one we started) or holds its file, and only while the kernel says that this one handles it and has the file
open: faulthandler writes to a number, which is another file's where the program has closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.processes.asking import standing_of
from trainjob.agent.processes.reaper import deaf_threads, handles
from trainjob_api import contract
from trainjob_api.recorded_calls import Call

WAIT_S = 1.0
ASKED_SHARE = 0.5
"""Of that, for its own answer; then it is sent the signal."""
POLL_S = 0.02
TEXT_LIMIT = 16_000
CUT = " bytes before this are not shown]"
"""How the first line ends of a text that is longer."""
MORE = "..."
"""The last line where there is more than was written in time."""
ALONE = "its main thread alone: the others do not answer (does a call hold the interpreter's lock?)"
"""The first line of a stack that the signal gave."""
_SIGNAL = getattr(signal, contract.STACK_SIGNAL_NAME)


class Stands(NamedTuple):
    """One rank."""

    stacks: str
    """The main thread's last; or a sentence why there is none."""
    calls: Optional[Tuple[Call, ...]] = None
    """Its last collectives; None: it does not tell."""


async def stands(rank: int, pid: Optional[int], folder: str, limit: int = TEXT_LIMIT, wait_s: float = WAIT_S) -> Stands:
    """Where one rank stands; of its stacks the last `limit` bytes at most. `pid`: of the process that has said hello as
    this rank. Takes `wait_s` at most.
    """
    if pid is None:
        return Stands("has not reached the training library yet (Python is starting), or has left it")
    clock = asyncio.get_running_loop().time
    until = clock() + wait_s
    told = await standing_of(rank, pid, folder, wait_s * ASKED_SHARE)
    if told is not None:
        return Stands(tail(told.stacks, limit), told.calls)
    text = await _main_thread_of(rank, pid, folder, limit, until)
    return Stands(text or f"gives no stack within {wait_s:g} s: {_state(pid)}")


async def stack_of(rank: int, pid: Optional[int], folder: str, limit: int = TEXT_LIMIT, wait_s: float = WAIT_S) -> str:
    """The stacks of one rank alone, as `stands`."""
    return (await stands(rank, pid, folder, limit, wait_s)).stacks


async def all_stand(pids: Mapping[int, Optional[int]], folder: str) -> Dict[int, Stands]:
    """Several ranks at once."""
    found = await asyncio.gather(*(stands(rank, pid, folder) for rank, pid in pids.items()))
    return dict(zip(pids, found))


async def _main_thread_of(rank: int, pid: int, folder: str, limit: int, until: float) -> str:
    """What faulthandler writes at the signal, or why it cannot; empty: it has written nothing `until` then."""
    # Without a handler it would die of it. A program that took its place (exec) has none.
    if not handles(pid, _SIGNAL):
        return f"gives no stack: {_state(pid)}, and does not handle {contract.STACK_SIGNAL_NAME}"
    path = os.path.join(folder, contract.STACK_FILE.format(rank=rank))
    held = files_of(pid)
    if held is not None and not any(os.path.basename(each) == os.path.basename(path) for each in held):
        return "gives no stack: its program has closed the file for it (os.closerange?)"
    clock = asyncio.get_running_loop().time
    deaf = deaf_threads(pid, _SIGNAL)
    # The signal would come to another thread, which would be taken for the main one. One that writes its stack for who
    # has asked before is soon done.
    while pid in deaf:
        if clock() >= until:
            return f"gives no stack: its main thread does not answer, and holds off {contract.STACK_SIGNAL_NAME}"
        await asyncio.sleep(POLL_S)
        deaf = deaf_threads(pid, _SIGNAL)
    before = _size(path)
    try:
        os.kill(pid, _SIGNAL)
    except ProcessLookupError:
        return "is ending"
    except OSError as error:
        return f"gives no stack: {error}"
    seen = before
    while clock() < until:
        await asyncio.sleep(POLL_S)
        size = _size(path)
        # Where others use the machine a thread that writes may stand still for longer than we wait: it is done when it
        # has left the handler.
        if size > before and size == seen and deaf_threads(pid, _SIGNAL) <= deaf:
            return tail(f"{ALONE}\n{_read(path, before)}", limit)
        seen = size
    return tail(f"{ALONE}\n{_read(path, before)}\n{MORE}", limit) if seen > before else ""


def files_of(pid: int) -> Optional[List[str]]:
    """What a process has open; None: it cannot be read."""
    folder = f"/proc/{pid}/fd"
    found = []
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(os.path.join(folder, name)))
    except OSError:
        return None
    return found


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str, start: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace").rstrip()
    except OSError as error:
        return f"its stack cannot be read: {error}"


def tail(text: str, limit: int) -> str:
    """The last `limit` bytes of a rank's stacks, where the main thread stands, and how many are left out."""
    whole = text.encode("utf-8", "replace")
    cut = len(whole) - limit
    return text if cut <= 0 else f"[{cut}{CUT}\n{whole[cut:].decode('utf-8', 'ignore')}"


def state_letter(pid: int) -> Optional[str]:
    """What the kernel says a process does: R, S, D, T (stopped), ...; None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return None


def _tracer(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next(line.split()[1].decode() for line in file if line.startswith(b"TracerPid:"))
    except (OSError, StopIteration, IndexError):
        return "unknown"


def _state(pid: int) -> str:
    letter = state_letter(pid)
    if letter is None:
        return "the process is gone"
    words = {
        "T": "the process is stopped (SIGSTOP or a debugger)",
        "t": f"a debugger or tracer holds it (TracerPid {_tracer(pid)})",
        "D": "the process waits in the kernel",
        "Z": "the process is gone",
    }
    return words.get(letter, f"process state {letter}; it may be inside a call that holds off signals")
