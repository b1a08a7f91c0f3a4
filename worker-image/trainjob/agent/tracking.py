"""The process that feeds the job's experiment trackers, beside the agent of rank 0 (spec.tracking).

`leader` begins it, tells it of edits and leaves it with its attempt, `work` ends it with the job. It reads what the job
reports on storage; here it is only started, told of the end, and started again when it dies. Trackers touch neither the
agent nor a rank.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

from trainjob.agent.config import AgentConfig
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import Reaper, signal_group, was_killed
from trainjob.agent.storing.storage import child_environment

MODULE = "trainjob.trackers.process"
OLDEST = (3, 10)
"""Python of the trackers; agents and ranks run with an older one."""
END_S = 45.0
"""For what is still on its way at the job's end: a tracker's patience, and the wait for the process before. A process
that takes longer ends itself."""
TRIES = 3
AGAIN_S = 5.0
"""After a death."""
_ATTEMPT_IS_OVER = b""


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], ended: asyncio.Future[None]) -> None:
        self.process, self.ended = process, ended
        self.told: Optional[bytes] = None

    def tell(self, line: bytes) -> None:
        """Nothing more is told after it."""
        self.told = line
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
        self._words: Tuple[str, ...] = ()
        self._children: List[_Child] = []
        self._place = (0, 0)
        """The run and the attempt that are led."""
        self._deaths: Dict[Tuple[int, int], int] = {}
        self._again: Optional[asyncio.TimerHandle] = None
        self._end: Optional[bytes] = None
        """What is told of the job's end, from then on also to one that is started for it."""
        self._closing = False

    def begin(self, run: int, attempt: int, words: Tuple[str, ...]) -> None:
        """This agent leads that attempt; `words`: its trackers."""
        self._place, self._words = (run, attempt), words
        self._start_anew()

    def feed(self, words: Tuple[str, ...]) -> None:
        """These trackers from now on. The process of those before ends once they have what was reported."""
        if words == self._words or self._end is not None or self._closing:
            return
        self._words = words
        self._deaths.pop(self._place, None)
        self._console.say(
            "spec.tracking was edited: " + ("another process feeds its trackers" if words else "no tracker is fed now")
        )
        self._start_anew()

    def _start_anew(self) -> None:
        self.leave()
        if not self._words or self._config.spec.storage is None:
            return
        if sys.version_info < OLDEST:
            self._console.say(
                f"spec.tracking needs Python {OLDEST[0]}.{OLDEST[1]} or newer in the image, and this is "
                f"{sys.version_info[0]}.{sys.version_info[1]}: the training goes on without its trackers"
            )
            return
        self._start()

    def leave(self) -> None:
        """The attempt is over, or its trackers are others; the process ends once they have what was reported."""
        self._is_due()
        for child in self._children:
            if child.told is None:
                child.tell(_ATTEMPT_IS_OVER)

    async def end(self, error: Optional[str]) -> None:
        """The job is over; `error`: why it failed. Until its trackers know all, for END_S at most."""
        self._end = json.dumps({"error": error}).encode() + b"\n"
        for child in self._children:
            if child.told is None:
                child.tell(self._end)
        if self._is_due():
            self._start()
        await self._ended(END_S)

    async def close(self, timeout_s: float) -> None:
        """Nothing of it stays."""
        self._closing = True
        self.leave()
        await self._ended(timeout_s)
        for child in self._children:
            self._console.say("the process that feeds the trackers takes too long to end: it is killed")
            signal_group(child.process.pid, signal.SIGKILL)

    async def _ended(self, timeout_s: float) -> None:
        """Also those that are started meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self._children and loop.time() < until:
            await asyncio.wait([child.ended for child in self._children], timeout=until - loop.time())

    def _is_due(self) -> bool:
        """Whether it was about to be started again; now it is not."""
        again, self._again = self._again, None
        if again is not None:
            again.cancel()
        return again is not None

    def _start(self) -> None:
        self._again = None
        try:
            child = self._started(*self._place)
        except (OSError, ValueError) as error:  # ValueError: of words that no program can be given
            self._died(f"cannot be started: {error}")
            return
        self._children.append(child)
        if self._end is not None:
            child.tell(self._end)

    def _started(self, run: int, attempt: int) -> _Child:
        options = {
            "--storage": str(self._config.spec.storage),
            "--name": self._config.job,
            "--run": str(run),
            "--attempt": str(attempt),
            "--folder": os.getcwd(),
            "--ends-within": str(END_S),
        }
        arguments = [word for option in options.items() for word in option]
        # Not in the user's folder: `-m` would import from there.
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments, *self._words],
            stdin=subprocess.PIPE,
            cwd=self._config.work_dir,
            env=child_environment(),
            start_new_session=True,
            bufsize=0,
        )
        process.returncode = 0  # collected by the reaper
        child = _Child(process, asyncio.get_running_loop().create_future())
        self._reaper.watch(process.pid, lambda status: self._gone(child, status), group=True)
        return child

    def _gone(self, child: _Child, status: int) -> None:
        if was_killed(status):
            self._reaper.kills.claim()
        if not child.ended.done():
            child.ended.set_result(None)
        self._children.remove(child)
        if status == 0 or self._closing:
            return
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        if child.told == _ATTEMPT_IS_OVER:
            self._console.say(
                f"the process that feeds the trackers ended with {how}; the next one goes on where it was"
            )
        else:
            self._died(f"ended with {how}")

    def _died(self, how: str) -> None:
        self._deaths[self._place] = self._deaths.get(self._place, 0) + 1
        again = self._deaths[self._place] < TRIES
        until = "before the next attempt" if self._end is None else "(`tj history` has what was reported)"
        self._console.say(
            f"the process that feeds the trackers {how}; "
            + ("it is started again" if again else f"it is not started again {until}")
        )
        if not again:
            return
        if self._end is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._start)
        else:
            self._start()
