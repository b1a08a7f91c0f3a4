"""The agent's end of the warm parent: started, heard, asked for gates, ended.

Made by `starter`. What the parent prints goes to a log of the agent's, and its last line into the reason when it dies.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from trainjob.agent.config import KeptParent
from trainjob.agent.processes import starter
from trainjob.agent.processes.output import LogFile
from trainjob.agent.processes.reaper import Reaper, is_our_child, signal_group, was_killed
from trainjob.agent.warm.choice import Plan
from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.line import Line
from trainjob_api import contract
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    ENV_ROOM,
    FROM_PARENT,
    PACKET_LIMIT,
    TO_PARENT,
    Begin,
    Fork,
    Ready,
    Refused,
    packet,
)

END_S = 5.0
"""So long after its line is closed a parent may take to end."""
ROOM = 4096
"""Bytes for the variables that a rank has beyond those of its parent."""


class WarmParent:
    """One process, from its start to its end."""

    def __init__(self, reaper: Reaper, log: str, say: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._made = self._loop.time()
        self._reaper = reaper
        self._log = log
        self._say = say
        self._line: Optional[Line] = None
        self._output: Optional[_Log] = None
        self.pid = 0
        self.environ: Dict[str, str] = {}
        """With which it was started."""
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        """Whether it can be forked; False: it cannot, or is gone."""
        self.why: Optional[str] = None
        """Why there will be no (more) forks of it."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """It does not live, and why is known."""
        self.closed = False
        """By us."""
        self.refused = False
        """That is its own word: another would say the same."""
        self.outdated = False
        """Something was installed or edited since it was forked: another has that. (Of what its own imports have
        changed another would say the same.)
        """
        self._has_forked = False
        self.package = ""
        """Of those learned, which is to blame for that."""
        self.starved: Optional[str] = None
        """The kernel killed it for its memory: what to say of that."""
        self._asked: Tuple[str, ...] = ()
        self.modules: Tuple[str, ...] = ()
        self.missing: Tuple[str, ...] = ()
        self.learns = False
        """It was asked to import what was learned."""
        self.learned = ""
        """What of that had to be named, as `Ready` has it."""

    @property
    def lives(self) -> bool:
        """It is importing, or can be forked."""
        return self._line is not None

    @property
    def is_lost(self) -> bool:
        """As `gone`. (Why one ends is known a moment after its line is closed.)"""
        return self.gone.done()

    @property
    def can_fork(self) -> bool:
        """It has imported all, and was not refused."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.result()

    @property
    def age_s(self) -> float:
        """Since it was made."""
        return self._loop.time() - self._made

    def lacks(self, plan: Plan) -> bool:
        """Whether it was not asked to import all of that."""
        return not {*plan.modules} <= {*self._asked}

    def start(self, argv: Sequence[str], environ: Dict[str, str], begin: Begin) -> None:
        """`argv`: of a plain rank. Raises CannotRun, OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                reading, writing = os.pipe()
                try:
                    try:
                        self._output = _Log(self._loop, reading, self._log)
                    except OSError:
                        os.close(reading)
                        raise
                    words, room = command(argv, theirs.fileno()), {ENV_ROOM: "_" * ROOM}
                    pid = starter.forked(words, {**environ, **room}, writing, [theirs.fileno()])
                finally:
                    os.close(writing)
        except BaseException:
            ours.close()
            if self._output is not None:
                self._output.close()
            raise
        self._asked, self.learns = begin.modules, bool(begin.learned)
        self.pid, self.environ, self._line = pid, environ, Line(ours, FROM_PARENT, self._heard)
        self._reaper.watch(pid, self._ended, group=True)
        self._line.send(packet(TO_PARENT, begin))

    def adopt(self, kept: KeptParent, environ: Dict[str, str], begin: Begin) -> None:
        """One that is there already, has imported this, and was started with such an environment. Raises OSError: it
        is gone.
        """
        line = socket.socket(fileno=kept.fd)
        line.set_inheritable(False)
        if not is_our_child(kept.pid):
            line.close()
            raise ProcessLookupError(f"process {kept.pid} is gone")
        self._asked = begin.modules
        self.pid, self.environ, self._line = kept.pid, environ, Line(line, FROM_PARENT, self._heard)
        self._reaper.watch(kept.pid, self._ended, group=True)
        self._line.send(packet(TO_PARENT, begin))

    def fork(self, refused: Callable[[str], None]) -> Optional[Gate]:
        """A gate to be; None: it is gone. `refused`: why there is none."""
        if self._line is None:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._line.send(packet(TO_PARENT, Fork()), [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        gate = Gate(self._reaper, ours, self._say, refused)
        gate.waits.add_done_callback(self._forked)
        return gate

    def _forked(self, stands: asyncio.Future[bool]) -> None:
        self._has_forked = self._has_forked or (not stands.cancelled() and stands.result())

    def close(self) -> None:
        """It ends by itself once we are gone; while it imports, it is killed."""
        self.closed = True
        self._lose(self.why or "it is not needed any more")
        if self.pid:
            signal_group(self.pid, 9)

    def _heard(self, word: Any) -> None:
        if word is None:
            # Its end is told by its wait status.
            self._lose(None)
            self._loop.call_later(END_S, self._outlived_its_line)
            return
        if isinstance(word, BadMessage):
            word = Refused(f"it says what makes no sense: {word}")
        if isinstance(word, Ready):
            self.modules, self.missing, self.learned = word.modules, word.missing, word.learned
            if not self.ready.done():
                self.ready.set_result(True)
        elif isinstance(word, Refused):
            self.refused, self.outdated, self.package = not word.again, word.again and self._has_forked, word.package
            self._lose(word.why)

    def _outlived_its_line(self) -> None:
        if self.pid:
            self._lose("it has closed its line to the agent")
            signal_group(self.pid, 9)

    def _lose(self, why: Optional[str]) -> None:
        self.why = self.why or why
        if self._line is not None:
            self._line.close()
            self._line = None
        if why is not None and not self.gone.done():
            self.gone.set_result(None)
        if why is not None and not self.ready.done():
            self.ready.set_result(False)

    def _ended(self, status: int) -> None:
        self.pid = 0
        if was_killed(status) and self.why is None:
            self.starved = self._reaper.kills.claim()
        how = f"was killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        how = how or f"ended with exit code {os.WEXITSTATUS(status)}"
        if self._output is not None:
            self._output.close()
            if self._output.last_line:
                how = f"{how}: {self._output.last_line}"
        self._lose(f"it {how}")


def command(argv: Sequence[str], fd: int) -> List[str]:
    """Of the parent, with room for the command line of a rank."""
    at = list(argv).index("--")
    words = [*argv[:at], contract.WARM, str(fd)]
    room = sum(map(len, map(os.fsencode, argv))) + len(argv) - sum(map(len, words)) - len(words) - 1
    return [*words, "_" * max(1, room)]


class _Log:
    """What the parent prints, in a file alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reading: int, path: str) -> None:
        """Raises OSError, and `reading` is still the caller's then."""
        self._file = LogFile(path)
        self._loop = loop
        self._reading = reading
        self._last = b""
        os.set_blocking(reading, False)
        loop.add_reader(reading, self._readable)

    @property
    def last_line(self) -> str:
        """That has text."""
        lines = self._last.decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Take what is in the pipe, and read no more."""
        if self._reading >= 0:
            self._readable()
        self._end()

    def _readable(self) -> None:
        try:
            data = os.read(self._reading, PACKET_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._file.write(data)
            self._last = (self._last + data)[-1000:]
        else:
            self._end()

    def _end(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1
            self._file.close()
