"""Where a rank stands: its Python stacks, written by faulthandler into a file when the agent sends STACK_SIGNAL.

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
from typing import Dict, List, Mapping, Optional

from trainjob.agent.processes.reaper import deaf_threads, handles
from trainjob_api import contract

WAIT_S = 1.0
POLL_S = 0.02
TEXT_LIMIT = 16_000
CUT = " bytes before this are not shown]"
"""How the first line ends of a text that is longer."""
MORE = "..."
"""The last line where there is more: faulthandler's own, of more than a hundred threads."""
_SIGNAL = getattr(signal, contract.STACK_SIGNAL_NAME)


async def stack_of(rank: int, pid: Optional[int], folder: str, limit: int = TEXT_LIMIT, wait_s: float = WAIT_S) -> str:
    """The stack of one rank (the last `limit` bytes at most), or why there is none; `pid`: of the process that has said
    hello as this rank. Takes `wait_s` at most.
    """
    if pid is None:
        return "has not reached the training library yet (Python is starting), or has left it"
    # Without a handler it would die of it. A program that took its place (exec) has none.
    if not handles(pid, _SIGNAL):
        return f"gives no stack: {_state(pid)}, and does not handle {contract.STACK_SIGNAL_NAME}"
    path = os.path.join(folder, contract.STACK_FILE.format(rank=rank))
    held = files_of(pid)
    if held is not None and not any(os.path.basename(each) == os.path.basename(path) for each in held):
        return "gives no stack: its program has closed the file for it (os.closerange?)"
    before, deaf = _size(path), deaf_threads(pid, _SIGNAL)
    try:
        os.kill(pid, _SIGNAL)
    except ProcessLookupError:
        return "is ending"
    except OSError as error:
        return f"gives no stack: {error}"
    deadline = asyncio.get_running_loop().time() + wait_s
    seen = before
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        size = _size(path)
        # Where others use the machine a thread that writes may stand still for longer than we wait: it is done when it
        # has left the handler.
        if size > before and size == seen and deaf_threads(pid, _SIGNAL) <= deaf:
            return _read(path, before, limit)
        seen = size
    if seen > before:
        return f"{_read(path, before, limit)}\n{MORE}"
    return f"gives no stack within {wait_s:g} s: {_state(pid)}"


async def stacks_of(pids: Mapping[int, Optional[int]], folder: str) -> Dict[int, str]:
    """Of several ranks at once."""
    texts = await asyncio.gather(*(stack_of(rank, pid, folder) for rank, pid in pids.items()))
    return dict(zip(pids, texts))


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


def _read(path: str, start: int, limit: int) -> str:
    try:
        with open(path, "rb") as file:
            # The end: faulthandler writes the main thread last.
            cut = max(0, file.seek(0, os.SEEK_END) - start - limit)
            file.seek(start + cut)
            text = file.read(limit).decode("utf-8", "replace").rstrip()
    except OSError as error:
        return f"its stack cannot be read: {error}"
    return text if not cut else f"[{cut}{CUT}\n{text}"


def tail(text: str, limit: int) -> str:
    """The last `limit` bytes of a rank's stacks, and how many are left out."""
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
