"""A rank whose process is stopped (SIGSTOP, a debugger) does nothing, and the others wait for it: said after 5 s.

`Stopped` is the rule, pure: a look says which state the kernel has for each rank's process. `watch` looks, for `crew`.
A look that comes late says nothing: the agent was frozen itself, or the machine slept, and every rank gets its time
anew.
"""

from __future__ import annotations

import asyncio
import time
from typing import Callable, Dict, Mapping, Optional

from trainjob.agent.processes.stacks import state_letter
from trainjob.agent.rank_names import ranks_text
from trainjob_api import contract

EVERY_S = 1.0
AFTER_S = 5.0
"""Shorter ones are a tool's: py-spy and gdb stop a process for a look."""
LATE_S = 2.5
"""Between two looks; more: nobody knows what was meanwhile."""
_STOPPED = {"T": "is stopped (SIGSTOP, or Ctrl-Z)", "t": "is stopped by a debugger or tracer that is attached to it"}


class Stopped:
    """Mutable: one for an attempt's ranks. Each stop is told once, and its end if it was told."""

    def __init__(self) -> None:
        self._looked: Optional[float] = None
        self._states: Dict[int, Optional[str]] = {}
        self._since: Dict[int, float] = {}
        self._told: Dict[int, float] = {}

    def look(self, now: float, states: Mapping[int, Optional[str]]) -> Dict[int, str]:
        """What is to be said of which rank. `states`: the kernel's letter for each rank's process, None: it is gone."""
        if self._looked is not None and now - self._looked > LATE_S:
            self._since.clear()
        self._looked, self._states = now, dict(states)
        said: Dict[int, str] = {}
        for rank in [*self._since, *self._told]:
            if states.get(rank) not in _STOPPED:
                self._since.pop(rank, None)
                began = self._told.pop(rank, None)
                if began is not None and states.get(rank) is not None:
                    said[rank] = f"continues, after {now - began:.0f} s"
        for rank, state in states.items():
            if state in _STOPPED:
                began = self._since.setdefault(rank, now)
                if now - began >= AFTER_S and rank not in self._told:
                    self._told[rank] = began
                    said[rank] = f"{_STOPPED[state]} for {now - began:.0f} s; the others wait for it"
        return said

    @property
    def since(self) -> Dict[int, float]:
        """Since when which ranks are stopped by a signal, so far as that was told. A debugger's are none: it is
        somebody's wish.
        """
        return {rank: began for rank, began in self._told.items() if self._states.get(rank) == "T"}


def report(stopped: Mapping[int, float], now: float, place: str) -> Optional[contract.HangReport]:
    """What the operator hears; None: none is stopped. `stopped`: of each since when."""
    if not stopped:
        return None
    ranks = tuple(sorted(stopped))
    moment = time.time() - (now - min(stopped.values()))
    said = "its process is" if len(ranks) == 1 else "their processes are"
    return {
        "since": moment,
        "ranks": list(ranks[: contract.HANG_RANKS_LIMIT]),
        "message": f"{ranks_text(ranks)} ({place}): {said} stopped (SIGSTOP, or Ctrl-Z) since "
        f"{time.strftime('%H:%M UTC', time.gmtime(moment))}; the others wait. Look at {ranks_text(ranks)}.",
        "stacks": "",
        "early": False,
    }


async def watch(
    pids: Callable[[], Mapping[int, int]],
    say: Callable[[int, str], None],
    place: str,
    hangs: Callable[[Optional[contract.HangReport]], None],
    seen: Callable[[float, Mapping[int, int], Mapping[int, Optional[str]]], None] = lambda now, there, states: None,
) -> None:
    """Until it is cancelled. `pids`: of the processes that are ranks now. `say`: of a rank, a line. `hangs`: what the
    operator hears is another, whatever made it so: it goes on, is gone, or a debugger has it. `seen`: of each look,
    the processes and their states.
    """
    loop, rule = asyncio.get_running_loop(), Stopped()
    known: Mapping[int, float] = {}
    while True:
        await asyncio.sleep(EVERY_S)
        there = pids()
        states = {rank: state_letter(pid) for rank, pid in there.items()}
        seen(loop.time(), there, states)
        for rank, text in rule.look(loop.time(), states).items():
            way = f"; `kill -CONT {there[rank]}` lets it continue" if states[rank] == "T" else ""
            say(rank, f"rank {rank}: its process {there[rank]} {text}{way}")
        if rule.since != known:
            known = rule.since
            hangs(report(known, loop.time(), place))
