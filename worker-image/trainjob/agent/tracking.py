"""The process that feeds the job's experiment trackers, beside the agent of rank 0 (spec.tracking).

`leader` begins and leaves it with its attempt, `work` ends it with the job. It reads what the job reports on storage;
here it is only started, told of the end, and started again when it dies. Trackers touch neither the agent nor a rank.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Dict, List, Optional

from trainjob.agent.config import AgentConfig
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import Reaper, signal_group, was_killed
from trainjob.agent.storing.storage import child_environment

MODULE = "trainjob.trackers.process"
END_S = 45.0
"""For what is still on its way at the job's end: a tracker's patience, and the wait for the process before."""
TRIES = 3
AGAIN_S = 5.0
"""After a death."""


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], ended: asyncio.Future[None]) -> None:
        self.process, self.ended = process, ended
        self.told = False

    def tell(self, line: bytes) -> None:
        """Nothing more is told after it."""
        self.told = True
        assert self.process.stdin is not None
        try:
            if line:
                self.process.stdin.write(line)
            self.process.stdin.close()
        except OSError:
            pass  # it is gone


class Tracking:
    """One per agent."""

    def __init__(self, config: AgentConfig, reaper: Reaper, console: Console) -> None:
        self._config, self._reaper, self._console = config, reaper, console
        self._words, self._storage = config.spec.tracking, config.spec.storage
        self._children: List[_Child] = []
        self._deaths: Dict[int, int] = {}
        """By attempt."""
        self._again: Optional[asyncio.TimerHandle] = None

    def begin(self, run: int, attempt: int) -> None:
        """This agent leads that attempt."""
        self.leave()
        if not self._words or self._storage is None:
            return
        try:
            self._children.append(self._started(run, attempt))
        except OSError as error:
            self._console.say(f"the process that feeds the trackers cannot be started: {error}")
            self._later(run, attempt)

    def leave(self) -> None:
        """The attempt is over; the process ends once its trackers have what was reported."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for child in self._children:
            if not child.told:
                child.tell(b"")

    async def end(self, error: Optional[str]) -> None:
        """The job is over; `error`: why it failed. Until its trackers know all, for END_S at most."""
        for child in self._children:
            if not child.told:
                child.tell(json.dumps({"error": error}).encode() + b"\n")
        await self._ended(END_S)

    async def close(self, timeout_s: float) -> None:
        """Nothing of it stays."""
        self.leave()
        await self._ended(timeout_s)
        for child in self._children:
            if not child.ended.done():
                signal_group(child.process.pid, signal.SIGKILL)

    async def _ended(self, timeout_s: float) -> None:
        waits = [child.ended for child in self._children if not child.ended.done()]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)

    def _started(self, run: int, attempt: int) -> _Child:
        config = self._config
        arguments = [
            "--storage",
            str(self._storage),
            "--name",
            config.job,
            "--run",
            str(run),
            "--attempt",
            str(attempt),
        ]
        arguments += ["--folder", os.getcwd()]
        # Not in the user's folder: `-m` would import from there.
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments, *self._words],
            stdin=subprocess.PIPE,
            cwd=config.work_dir,
            env=child_environment(),
            start_new_session=True,
            bufsize=0,
        )
        process.returncode = 0  # collected by the reaper
        child = _Child(process, asyncio.get_running_loop().create_future())
        self._reaper.watch(process.pid, lambda status: self._gone(child, status, run, attempt), group=True)
        return child

    def _gone(self, child: _Child, status: int, run: int, attempt: int) -> None:
        if was_killed(status):
            self._reaper.kills.claim()
        if not child.ended.done():
            child.ended.set_result(None)
        self._children.remove(child)
        if status == 0 or child.told:
            return
        self._deaths[attempt] = self._deaths.get(attempt, 0) + 1
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        again = self._deaths[attempt] < TRIES
        self._console.say(
            f"the process that feeds the trackers ended with {how}; "
            + ("it is started again" if again else "it is not started again before the next attempt")
        )
        if again:
            self._later(run, attempt)

    def _later(self, run: int, attempt: int) -> None:
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(AGAIN_S, self.begin, run, attempt)
