"""Where a rank stands: its Python stacks, written by faulthandler into a file when the agent sends STACK_SIGNAL.

Called by `member` when other ranks wait for one of ours.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Sequence

from trainjob.agent.processes.rank_command import stack_file
from trainjob.agent.processes.ranks import Rank, how_it_ended
from trainjob_api import contract

WAIT_S = 1.0
POLL_S = 0.02
TEXT_LIMIT = 6000
_SIGNAL = getattr(signal, contract.STACK_SIGNAL_NAME)


async def stack_of(rank: Rank, folder: str) -> str:
    """The stack of one rank, or why there is none. Takes WAIT_S at most."""
    if rank.state == contract.RANK_ENDED:
        return how_it_ended(rank.report())
    if not rank.greeted:
        return "has not reached the training library yet (Python is starting)"
    path = stack_file(folder, rank.rank)
    before = _size(path)
    try:
        os.kill(rank.pid, _SIGNAL)
    except ProcessLookupError:
        return "is ending"
    deadline = asyncio.get_running_loop().time() + WAIT_S
    seen = before
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        size = _size(path)
        if size > before and size == seen:
            return _read(path, before)
        seen = size
    return f"gives no stack within {WAIT_S:g} s: {_state(rank.pid)}"


async def stacks_of(ranks: Sequence[Rank], folder: str) -> dict[str, str]:
    """Of several ranks at once."""
    texts = await asyncio.gather(*(stack_of(r, folder) for r in ranks))
    return {str(r.rank): text for r, text in zip(ranks, texts)}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(TEXT_LIMIT).decode("utf-8", "replace").rstrip()


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "the process is gone"
    words = {
        "T": "the process is stopped (SIGSTOP or a debugger)",
        "t": "the process is traced",
        "D": "the process waits in the kernel",
        "Z": "the process is gone",
    }
    return words.get(letter, f"process state {letter}; it may be inside a call that holds off signals")
