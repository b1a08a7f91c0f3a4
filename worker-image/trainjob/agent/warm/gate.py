"""The agent's end of one gate: a fork of the warm parent that waits to become a rank.

Made by `parent`. From its first word on it is a child that the reaper watches; who gives it its order watches it from
then on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from typing import IO, Any, Callable

from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.warm.line import Line
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import FROM_GATE, ORDERS, TO_GATE, Go, Here, Order, Plain, packet


class Gate:
    """One fork."""

    def __init__(self, reaper: Reaper, line: socket.socket, say: Callable[[str], None]) -> None:
        """`say`: why this fork did not go the warm way."""
        self._reaper = reaper
        self._line = Line(line, FROM_GATE, self._heard)
        self._say = say
        self.pid = 0
        self.waits: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether it stands and waits; False: it never will."""

    @property
    def stands(self) -> bool:
        """It waits for its order."""
        return self._line.is_open and self.pid > 0

    def go(self, order: Order, output: int) -> bool:
        """Give it its order; False: it is gone. It is the caller's to watch from now on."""
        if not self.stands:
            return False
        try:
            with _file() as file:
                file.write(packet(ORDERS, order))
                file.flush()
                self._line.send(packet(TO_GATE, Go()), [file.fileno(), output])
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """It is not needed: without us it ends by itself, and the reaper collects it."""
        self._line.close()
        if not self.waits.done():
            self.waits.set_result(False)

    def _heard(self, word: Any) -> None:
        if isinstance(word, Here) and self._is_our_child(word.pid):
            self.pid = word.pid
            self._reaper.watch(word.pid, lambda status: self.drop(), group=True)
            if not self.waits.done():
                self.waits.set_result(True)
            return
        if isinstance(word, BadMessage):
            self._say(f"a fork of the warm parent says what makes no sense: {word}")
        elif isinstance(word, Plain):
            self._say(word.why)
        elif word is not None:
            self._say(getattr(word, "why", "a fork of the warm parent is not this agent's child"))
        self.drop()

    @staticmethod
    def _is_our_child(pid: int) -> bool:
        """Alive, so that its end will be told to who watches it from this turn on."""
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False


def _file() -> IO[bytes]:
    """One that has no name: an environment may be larger than a packet."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("order"), "w+b")
    return tempfile.TemporaryFile()
