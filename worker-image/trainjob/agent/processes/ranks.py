"""The rank processes of one attempt on this agent: started (how: `starter`), watched, signalled, ended.

Called by `attempt`. What is known of each rank, and what its end means, is `rank`'s.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Callable, Dict, List, Optional, Sequence

from trainjob.agent.background import Background
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.output import LogFile, RankOutput
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.reaper import Reaper, group_gone, handles, kill_group, signal_group, signal_process
from trainjob.agent.processes.starter import PlainStarter, Starter

STUCK_S = 30.0
"""After SIGKILL: until processes that live on are reported, and again until the agent gives up on its pod."""
LAST_WORDS_S = 0.5
"""After a rank's end: how long its socket and pipe may take to reach their ends (a left-over process may hold them
open), and its last lines to be printed, before its end is told. What the rank itself said lies in the kernel's buffers
by then, and is read in the same turn of the loop: no clock decides whether it is heard.
"""
READ_S = 10.0
"""Then: how late the thread may be that reads what it printed, of which its verdict may be made: on a busy machine, or
as it waits for a stdout or a disk.
"""


class RankGroup:
    """All ranks of an attempt on this agent."""

    def __init__(
        self,
        reaper: Reaper,
        console: Console,
        plain: bool,
        on_change: Callable[[Rank], None],
        background: Background,
        starter: Optional[Starter] = None,
    ) -> None:
        """`starter`: if not each in a new interpreter."""
        self._background = background
        self._starter = starter or PlainStarter()
        self.warn: Callable[[str], None] = lambda text: None
        """Set by the attempt: into the agent's report."""
        self._reaper = reaper
        self._console = console
        self._plain = plain
        self._on_change = on_change
        self.ranks: List[Rank] = []
        self.last_words: Callable[[Rank], asyncio.Future[Any]] = _no_words
        """Set by the attempt: done when the rank's socket has been read to its end."""
        self.speakers: Optional[Callable[[], List[int]]] = None
        """Set by the attempt for launchers: the processes that speak as ranks."""

    @property
    def alive(self) -> bool:
        """Some process of it may be alive."""
        return any(r.alive for r in self.ranks)

    def start(self, rank: Rank, argv: Sequence[str], env: Dict[str, str], log: str, prefix: str) -> None:
        """Start one rank. Raises CannotRun when the program cannot be executed, OSError when this place cannot start
        it. Whatever can fail comes before the start: a process that is not watched could never be ended.
        """
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        file = LogFile(log)
        try:
            reading, writing = os.pipe()
        except OSError:
            file.close()
            raise
        output = None
        try:
            output = RankOutput(loop, reading, prefix, self._console, file)
            pid = self._starter.start(argv, env, writing)
        except BaseException:
            if output is not None:
                output.close()
            else:
                os.close(reading)
                file.close()
            raise
        finally:
            os.close(writing)
        self._reaper.watch(pid, lambda status: self._ended(rank, status), group=True)
        rank.argv, rank.pid, rank.gone, rank.output = argv, pid, gone, output
        self._on_change(rank)

    def _ended(self, rank: Rank, status: int) -> None:
        rank.take_status(status)
        self._background.spawn(self._finish(rank))

    async def _finish(self, rank: Rank) -> None:
        assert rank.output is not None and rank.gone is not None
        output, words = rank.output, self.last_words(rank)
        words.add_done_callback(lambda _: output.heard())
        await asyncio.wait([words, output.shown], timeout=LAST_WORDS_S)
        output.close()
        await asyncio.wait([output.read], timeout=READ_S)
        rank.decide(self._plain)
        rank.explain_kill(self._reaper.kills)
        self._on_change(rank)
        if not await group_gone(rank.pid):
            self._console.say(
                f"rank {rank.rank}: processes of its group {rank.pid} survive SIGKILL (inside a driver call?)"
            )
        rank.gone.set_result(None)
        self._on_change(rank)

    def signal(self, number: int) -> None:
        """To each rank's own process, not to what it started: of DataLoader workers that end first it would only see
        an error. A launcher that handles the signal passes it on; behind a shell it goes to those that speak as ranks.
        """
        for rank in self._unended():
            speakers = [] if self.speakers is None or handles(rank.pid, number) else self.speakers()
            for pid in speakers or [rank.pid]:
                signal_process(pid, number)

    def _unended(self) -> List[Rank]:
        return [rank for rank in self.ranks if rank.alive and rank.ended_at is None]

    def condemn(self, verdict: str) -> None:
        """Ends from now on are our doing."""
        for rank in self.ranks:
            if rank.ended_at is None and rank.verdict is None:
                rank.verdict = verdict

    async def stop(self, verdict: str, grace_s: float) -> None:
        """SIGTERM, after `grace_s` SIGKILL to all that they started (0: at once); returns when all are gone."""
        self.condemn(verdict)
        if grace_s > 0:
            self.signal(signal.SIGTERM)
            # A stopped process (SIGSTOP) takes no SIGTERM until it is continued.
            for rank in self._unended():
                signal_group(rank.pid, signal.SIGCONT)
            await self.wait(grace_s)
        for rank in self._unended():
            kill_group(rank.pid)
        await self.wait(STUCK_S)
        if self.alive:
            self._say_stuck()
            await self.wait(STUCK_S)
        if self.alive:
            raise Stuck(self._stuck())

    def _stuck(self) -> str:
        pids = ", ".join(str(rank.pid) for rank in self.ranks if rank.alive)
        return (
            f"SIGKILL does not end the ranks' processes {pids}: they wait inside the kernel, likely for a network file "
            "system or a GPU driver that hangs"
        )

    def _say_stuck(self) -> None:
        self._console.say(self._stuck())
        self.warn(f"{self._stuck()}. If they do not end, this agent does, so that its pod is replaced.")

    async def wait(self, timeout_s: Optional[float]) -> None:
        """Until all are gone, or the time is over."""
        living = [r.gone for r in self.ranks if r.gone is not None and not r.gone.done()]
        if living:
            await asyncio.wait(living, timeout=timeout_s)


class Stuck(Exception):
    """Processes that SIGKILL cannot end."""


def _no_words(rank: Rank) -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
