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

from trainjob.agent.processes.reaper import Reaper, is_our_child
from trainjob.agent.warm.line import Line
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import FROM_GATE, ORDERS, TO_GATE, Go, Here, Host, Hosts, Order, Plain, Refused, packet


class Gate:
    """One fork."""

    def __init__(
        self, reaper: Reaper, line: socket.socket, say: Callable[[str], None], refused: Callable[[str], None]
    ) -> None:
        """`say`: why this fork did not go the warm way. `refused`: why there is none."""
        self._reaper = reaper
        self._line = Line(line, FROM_GATE, self._heard)
        self._say, self._refused = say, refused
        self.pid = 0
        self.waits: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether it stands and waits; False: it never will."""
        self.hosts: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Of one that is asked to be a store: whether it is."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Of one that stood and was never given an order: its process is no more."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when a store ends that was not dropped."""
        self._dropped = False

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

    def host(self, port: int, say: Callable[[str], None]) -> None:
        """Become the store of an attempt; `hosts` is the answer. `say`: why it did not."""
        self._say = say
        try:
            self._line.send(packet(TO_GATE, Host(port)))
        except OSError:
            self.drop()

    def drop(self) -> None:
        """It is not needed (any more): without us it ends by itself, and the reaper collects it."""
        self._dropped = True
        self._line.close()
        for answer in (self.waits, self.hosts):
            if not answer.done():
                answer.set_result(False)

    def _ended(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._lost()

    def _lost(self) -> None:
        hosted = not self._dropped and self.hosts.done() and self.hosts.result()
        self.drop()
        if hosted:
            self.on_end()

    def _heard(self, word: Any) -> None:
        if isinstance(word, Here) and is_our_child(word.pid):
            self.pid = word.pid
            self._reaper.watch(word.pid, lambda status: self._ended(), group=True)
            if not self.waits.done():
                self.waits.set_result(True)
            return
        if isinstance(word, Hosts):
            if not self.hosts.done():
                self.hosts.set_result(True)
            return
        if isinstance(word, BadMessage):
            self._say(f"a fork of the warm parent says what makes no sense: {word}")
        elif isinstance(word, Plain):
            self._say(word.why)
        elif isinstance(word, Refused) and not self.pid:
            self._refused(word.why)
        elif word is not None:
            self._say(getattr(word, "why", "a fork of the warm parent is not this agent's child"))
        self._lost()


def _file() -> IO[bytes]:
    """One that has no name: an environment may be larger than a packet."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("order"), "w+b")
    return tempfile.TemporaryFile()
