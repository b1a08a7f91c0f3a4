"""A rank whose script has ended, and whose process has not: a thread that is no daemon, a child, or a clean-up at exit
keeps it. It is said, and in the end it is ended, as what it said of itself: its own exit code counts.

With an exit code other than 0 it has broken, and ends like one that raised (`ending`). With 0 it may be at work yet: a
script may train in a thread, or upload what it made. So it is ended only once it has done nothing for IDLE_S: no call
of the library, none that waits for its answer, and hardly any work of its processor.

Called by `attempt` with a rank's own word (`Leaving`). `Idle` is pure.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Callable, List, Optional

from trainjob.agent.processes import family
from trainjob.agent.processes.ending import ENDING_S
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.reaper import kill_group
from trainjob.agent.processes.stacks import stack_of
from trainjob_api import contract
from trainjob_api.rank_messages import Leaving

SAY_S = 30.0
IDLE_S = 300.0
LOOK_S = 10.0
BUSY_SHARE = 0.05
"""Of one core: an upload takes more, a thread that waits or looks in now and then takes less."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Idle:
    """Since when a rank does nothing."""

    def __init__(self, now: float, cpu_s: float, calls: int) -> None:
        self._since = self._looked = now
        self._cpu_s = cpu_s
        self._calls = calls

    def idle_s(self, now: float, cpu_s: float, calls: int, waits: bool) -> float:
        """A look at it: processor time so far, calls so far, whether one waits for its answer."""
        worked = cpu_s - self._cpu_s > BUSY_SHARE * (now - self._looked)
        if worked or waits or calls != self._calls:
            self._since = now
        self._looked, self._cpu_s, self._calls = now, cpu_s, calls
        return now - self._since


def how(word: Leaving) -> str:
    """`ended its script with exit code 3`."""
    return "ended its script" + ("" if word.code is None else f" with exit code {word.code}")


async def see_it_leave(
    rank: Rank,
    word: Leaving,
    waits: Callable[[], bool],
    variables: List[bytes],
    stack_folder: str,
    say: Callable[[str], None],
    warn: Callable[[Optional[str]], None],
) -> None:
    """`variables`: by which the rank's processes are known. `waits`: whether a call of its is being answered."""
    broken = bool(word.code)
    began = time.monotonic()
    await rank.until_gone(ENDING_S if broken else SAY_S)
    if rank.ended_at is not None or rank.verdict is not None:
        return
    text = f"rank {rank.rank} {how(word)}, but its process lives on {int(time.monotonic() - began)} s later"
    text += _kept_by(word)
    if not broken:
        text += (
            f". It is ended once it has called nothing of the library, and used less than {BUSY_SHARE:.0%} of a core, "
            f"for {IDLE_S:g} s; its exit code counts"
        )
        warn(text)
    stack = await stack_of(rank.rank, rank.pid, stack_folder)
    say(f"{text}. It stands here:\n{stack}")
    if not broken:
        await _until_idle(rank, waits, variables)
        warn(None)
    if rank.ended_at is None and rank.verdict is None:
        say(f"rank {rank.rank} {how(word)} and does nothing any more: its process is killed")
        rank.leaves_with = word.code or 0
        kill_group(rank.pid)


async def say_it_stays(rank: int, word: Leaving, parted: asyncio.Future[None], say: Callable[[str], None]) -> None:
    """The same behind a launcher, which alone knows what its end means to it: nothing is killed."""
    await asyncio.wait([parted], timeout=SAY_S)
    if not parted.done():
        say(
            f"rank {rank} {how(word)}, but its process lives on {SAY_S:g} s later{_kept_by(word)}. "
            "What started it waits for it"
        )


def _kept_by(word: Leaving) -> str:
    kept = [
        f"{what} {', '.join(names)}"
        for what, names in (("threads", word.threads), ("child processes", word.children))
        if names
    ]
    return ": Python waits for its " + " and ".join(kept) if kept else ", in a clean-up at exit"


async def _until_idle(rank: Rank, waits: Callable[[], bool], variables: List[bytes]) -> None:
    loop = asyncio.get_running_loop()
    cpu_s = await loop.run_in_executor(None, cpu_seconds, rank.pid, variables)
    idle, calls = Idle(time.monotonic(), cpu_s, rank.calls), rank.calls
    while rank.ended_at is None and rank.verdict is None:
        await rank.until_gone(LOOK_S)
        cpu_s, calls = await loop.run_in_executor(None, cpu_seconds, rank.pid, variables), rank.calls
        if idle.idle_s(time.monotonic(), cpu_s, calls, waits()) >= IDLE_S:
            return


def rank_variables(pod_uid: str, number: int) -> List[bytes]:
    """What the environment of a rank's processes has, and that of no other's."""
    return [f"{contract.ENV_POD_UID}={pod_uid}".encode(), f"{contract.ENV_RANK}={number}".encode()]


def cpu_seconds(pid: int, variables: List[bytes]) -> float:
    """Processor time of a rank's process and all below it, and of those elsewhere that have these environment
    variables, with that of their children that ended. Of the first no variables are asked: a program that names itself
    (setproctitle) has written over them.
    """
    below = {pid, *family.below_of(pid)}
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - below
    return sum(map(_cpu_of, below)) + sum(_cpu_of(other) for other in others if _has(other, variables))


def _has(pid: int, variables: List[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = file.read().split(b"\0")
    except OSError:
        return False
    return all(variable in found for variable in variables)


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS
