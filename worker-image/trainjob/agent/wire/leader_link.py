"""A member's connection to rank 0's agent, whose end is `peers`: connected, proven on both sides (`handshake`), and
made anew after each loss.

Made by `attempt`.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Callable, Optional

from trainjob.agent.background import Background, OnFault, of_the_agent, within
from trainjob.agent.wire import handshake, peers, pulse
from trainjob.agent.wire.addresses import join_address, split_address
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_leader import FROM_LEADER, FromLeader
from trainjob.agent.wire.from_member import FROM_MEMBER, Bye, FromMember
from trainjob.agent.wire.peers import Complain, unheard
from trainjob_api import wire

CONNECT_S = 5.0
RETRY_S = 0.05
RETRY_CAP_S = 1.0
SILENT_TRIES = 20
"""So often an agent may close the connection without a word (it is just being started) before people are told."""
PATIENT_TRIES = 5
"""So often it may say that our attempt is over before people are told: the operator tells its agents one by one."""
LOST_AFTER_S = 1.0
"""How long rank 0's agent may be unreachable before it counts as a lost peer."""


@dataclass(frozen=True)
class Caller:
    """As whom a member calls rank 0's agent."""

    secret: str
    attempt: int
    index: int


class LeaderLink:
    """A member's connection to rank 0's agent: connects, proves itself, and comes back after a loss until closed."""

    def __init__(
        self,
        caller: Caller,
        on_up: Callable[[], None],
        on_word: Callable[[FromLeader], None],
        on_lost: Callable[[Optional[float]], None],
        complain: Complain = unheard,
        on_fault: OnFault = of_the_agent,
    ) -> None:
        self.caller = caller
        self._background = Background(on_fault)
        self._on_up = on_up
        self._on_word = on_word
        self._on_lost = on_lost
        self._complain = complain
        self._said = ""
        self._silent = self._over = 0
        self._connection: Optional[FrameConnection] = None
        self._task: Optional[asyncio.Task[None]] = None
        self._number = 0
        """Of what is wanted: an address to keep to, or none any more."""
        self._is_silent = False
        loop = asyncio.get_running_loop()
        self._pulse = pulse.Pulse(loop.time())
        self._beating = loop.call_later(pulse.BEAT_S, self._beat)

    def connect(self, address: str) -> None:
        """Connect to this address, leaving any other."""
        self._stop()
        self._task = self._background.task(self._keep(address, self._number))

    def send(self, word: FromMember) -> None:
        """Send; without a connection nothing (after the next hello everything is said again)."""
        if self._connection is not None:
            self._connection.send_frame(FROM_MEMBER.encode(word))

    @property
    def is_up(self) -> bool:
        """Rank 0's agent is connected."""
        return self._connection is not None

    def close(self) -> None:
        """Leave in good order."""
        self._beating.cancel()
        self.send(Bye())
        self._stop()

    def _beat(self) -> None:
        """Say that we live, and look whether rank 0's agent does."""
        loop = asyncio.get_running_loop()
        self._beating = loop.call_later(pulse.BEAT_S, self._beat)
        self._pulse.tick(loop.time())
        if self._connection is None:
            return
        self._connection.send_if_quiet(pulse.FRAME, pulse.BEAT_S / 2)
        since = self._pulse.silent_since(self._connection.heard_at)
        if since is not None or self._is_silent:
            self._is_silent = since is not None
            self._on_lost(since)

    def _stop(self) -> None:
        self._number += 1
        if self._task is not None:
            self._task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _keep(self, address: str, number: int) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        host, port = split_address(address)
        lost_at, delay = loop.time(), RETRY_S
        while True:
            gone: asyncio.Future[None] = loop.create_future()
            if await self._try(host, port, gone, number):
                delay = RETRY_S
                self._on_lost(None)
                await gone
                lost_at = loop.time()
            elif loop.time() - lost_at >= LOST_AFTER_S:
                self._on_lost(lost_at)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_CAP_S)

    async def _try(self, host: str, port: int, gone: asyncio.Future[None], number: int) -> bool:
        """Connect, and wait until each side has proven itself to the other."""
        loop = asyncio.get_running_loop()
        greeting = _Greeting(self.caller, loop.create_future())

        def lost(connection: FrameConnection) -> None:
            if self._connection is connection:
                self._connection = None
            greeting.end(None)
            if not gone.done():
                gone.set_result(None)

        def greeted(connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
            if number != self._number:
                connection.abort()
            elif not greeting.done:
                greeting.take(connection, message)
                if greeting.proven:
                    # In this turn: what it sends next may be in the same packet.
                    connection.trust()
                    self._connection = connection
                    self._on_up()
            elif self._connection is connection:
                self._on_word(FROM_LEADER.parse(message, blob))

        connection = FrameConnection(greeted, lost, handshake.REFUSAL_LIMIT)
        try:
            await within(loop.create_connection(lambda: connection, host, port), CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            return False
        except asyncio.CancelledError:
            connection.abort()  # it may have come in this very turn
            raise
        connection.send(greeting.hello.to_message())
        try:
            # It may be kept waiting until its agent has heard of the attempt; one that is frozen says nothing at all.
            refusal = await within(greeting.over, peers.WAITING_S + peers.STRANGER_S)
        except asyncio.TimeoutError:
            connection.abort()
            return False
        except asyncio.CancelledError:
            connection.close()
            raise
        where = f"{join_address(host, port)}, where rank 0's agent should be"
        self._silent = 0 if greeting.heard else self._silent + 1
        self._over = self._over + 1 if greeting.kind == handshake.OVER else 0
        if refusal is not None:
            if not 0 < self._over < PATIENT_TRIES:
                self._tell(f"{where}: {refusal}", greeting.kind == handshake.OTHER_VERSION)
            connection.abort()
        elif self._silent >= SILENT_TRIES:
            self._tell(
                f"{where}, closes each connection without a word. Is it an agent of an older version of TrainJob? "
                f"{handshake.WAY_OUT}",
                True,
            )
        return self._connection is connection

    def _tell(self, text: str, lasting: bool) -> None:
        if text != self._said:
            self._said = text
            self._complain(text, lasting)


class _Greeting:
    """The caller's side of one handshake."""

    def __init__(self, caller: Caller, over: asyncio.Future[Optional[str]]) -> None:
        self._secret = caller.secret
        self.heard = False
        """It has said anything at all."""
        self.kind = ""
        """Of the refusal."""
        self._answered = False
        self.hello = handshake.hello(handshake.MEMBER, caller.attempt, caller.index)
        self.over = over
        """Done with the other side's refusal, or None."""
        self.proven = False

    @property
    def done(self) -> bool:
        return self.over.done()

    def end(self, refusal: Optional[str]) -> None:
        if not self.over.done():
            self.over.set_result(refusal)

    def take(self, connection: FrameConnection, message: wire.Message) -> None:
        self.heard = True
        if message.get("op") == handshake.REFUSED:
            self.kind = str(message.get("kind"))
            self.end(str(message.get("message"))[: handshake.TEXT_LIMIT])
        elif not self._answered:
            try:
                proof = handshake.answer(self._secret, self.hello, message)
            except ValueError as error:
                self.end(str(error))
                return
            self._answered = True
            connection.send(proof)
        elif message.get("op") == handshake.HELLO:
            self.proven = True
            self.end(None)
        else:
            self.end("it sends something before it has let us in")
