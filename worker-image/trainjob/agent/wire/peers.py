"""Connections between agents: the server of this one, and the link to rank 0's agent.

Called by `agent` (server) and `attempt` (link). Until a caller has proven that it knows the secret of our attempt
(`handshake`) it is a stranger: it may send two short frames, has a few seconds for each, and makes way for the next one
when there are many. Who names an attempt that we have not heard of cannot be judged yet and is kept waiting, as a
stranger; who names an older one is sent away.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Protocol, Tuple

from trainjob.agent.background import Background, OnFault, of_the_agent
from trainjob.agent.wire import handshake, pulse
from trainjob.agent.wire.addresses import join_address, split_address
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_leader import FROM_LEADER, FromLeader
from trainjob.agent.wire.from_member import FROM_MEMBER, Bye, FromMember
from trainjob.agent.wire.handshake import Hello
from trainjob_api import wire

STRANGERS_LIMIT = 1024
"""Connections whose caller is not proven yet. Beyond it the oldest is closed: an agent proves itself within
milliseconds, and one that waits for us to hear of its attempt comes back by itself.
"""
STRANGER_S = 10.0
"""For each of a stranger's frames."""
WAITING_S = 30.0
"""How long a caller may wait for us to hear of its attempt."""
CONNECT_S = 5.0
RETRY_S = 0.05
RETRY_CAP_S = 1.0
SILENT_TRIES = 20
"""So often an agent may close the connection without a word (it is just being started) before people are told."""
LOST_AFTER_S = 1.0
"""How long rank 0's agent may be unreachable before it counts as a lost peer."""


class Host(Protocol):
    """Who takes members' connections: the leader of the current attempt."""

    def attach(self, index: int, connection: FrameConnection) -> None:
        """A member is connected."""

    def take(self, index: int, word: FromMember) -> None:
        """What it says. Raises ValueError."""

    def detach(self, index: int, connection: FrameConnection) -> None:
        """Its connection is gone."""


OnFiles = Callable[[FrameConnection, wire.Message], None]
Complain = Callable[[str, bool], None]
"""What people should read; True: it does not pass by itself."""


def _unheard(text: str, lasting: bool) -> None:
    pass


class _Stranger(NamedTuple):
    """One that has connected and is not proven."""

    timer: asyncio.TimerHandle
    hello: Optional[Hello] = None
    nonce: str = ""
    """Ours; empty: it was not answered yet."""


class PeerServer:
    """Accepts peers. `know` names the attempt that this agent is in, and its leader here if it leads."""

    def __init__(self, on_files: OnFiles, complain: Complain = _unheard) -> None:
        self._on_files = on_files
        self._complain = complain
        self._secret: Optional[str] = None
        self._attempt = 0
        self._host: Optional[Host] = None
        self._server: Optional[asyncio.AbstractServer] = None
        self._strangers: Dict[FrameConnection, _Stranger] = {}
        """In the order in which they came."""
        self._admitted: Dict[FrameConnection, Optional[Tuple[Host, int]]] = {}
        self._complained = False
        self.port = 0

    async def start(self, host: str) -> None:
        """Listen on a port of the system's choice."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, 0, backlog=1024)
        sockets: Any = self._server.sockets
        self.port = sockets[0].getsockname()[1]

    def know(self, secret: str, attempt: int, host: Optional[Host]) -> None:
        """The coordinator's word: the secret, and the attempt we are in (as its leader or not)."""
        self._secret, self._attempt, self._host = secret, attempt, host
        self._complained = False
        for connection, stranger in list(self._strangers.items()):
            if stranger.hello is not None and not stranger.nonce:
                self._judge(connection, stranger.hello)

    def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._strangers, *self._admitted]:
            connection.close()

    # -- strangers -----------------------------------------------------------------------------------------------------

    def _connection(self) -> FrameConnection:
        while len(self._strangers) >= STRANGERS_LIMIT:
            self._send_away(next(iter(self._strangers)))
        connection = FrameConnection(self._first, self._lost, handshake.FRAME_LIMIT)
        self._strangers[connection] = _Stranger(self._deadline(connection, STRANGER_S))
        return connection

    def _deadline(self, connection: FrameConnection, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._send_away, connection)

    def _send_away(self, connection: FrameConnection) -> None:
        self._forget(connection)
        connection.abort()

    def _forget(self, connection: FrameConnection) -> None:
        stranger = self._strangers.pop(connection, None)
        if stranger is not None:
            stranger.timer.cancel()

    def _refuse(self, connection: FrameConnection, why: str, kind: str = "") -> None:
        """With a word, so that the other side's log says what is wrong."""
        self._forget(connection)
        connection.send({"op": handshake.REFUSED, "kind": kind, "message": why})
        connection.close()

    def _first(self, connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
        connection.on_frame = _too_early
        try:
            hello = handshake.parse(message)
        except handshake.OtherVersion as error:
            if not self._complained:  # once: whoever reaches this port can say it
                self._complained = True
                self._complain(str(error), True)
            self._refuse(connection, str(error), handshake.OTHER_VERSION)
            return
        self._judge(connection, hello)

    def _judge(self, connection: FrameConnection, hello: Hello) -> None:
        stranger = self._strangers[connection]
        if self._secret is None or hello.attempt > self._attempt:
            stranger.timer.cancel()
            self._strangers[connection] = _Stranger(self._deadline(connection, WAITING_S), hello)
        elif hello.attempt < self._attempt:
            self._refuse(connection, f"attempt {hello.attempt} is over: this agent is in attempt {self._attempt}")
        elif hello.purpose == handshake.MEMBER and self._host is None:
            self._refuse(connection, f"this agent is not rank 0's in attempt {self._attempt}")
        else:
            stranger.timer.cancel()
            own = handshake.nonce()
            self._strangers[connection] = _Stranger(self._deadline(connection, STRANGER_S), hello, own)
            connection.on_frame = self._proof
            connection.send(handshake.challenge(self._secret, hello, own))

    def _proof(self, connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
        _, hello, own = self._strangers[connection]
        assert hello is not None and self._secret is not None
        # Against the secret of now: a newer attempt may have begun since the challenge.
        if hello.attempt != self._attempt or not handshake.is_proven(self._secret, hello, own, message):
            self._refuse(connection, "the caller does not know the secret of this attempt")
            return
        self._forget(connection)
        connection.trust()
        if hello.purpose == handshake.FILES:
            self._admitted[connection] = None
            connection.on_frame = lambda c, m, blob: self._on_files(c, m)
            connection.send({"op": handshake.HELLO})
        elif self._host is not None:
            self._attach(connection, self._host, hello.index)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _attach(self, connection: FrameConnection, host: Host, index: int) -> None:
        self._admitted[connection] = (host, index)
        connection.on_frame = lambda c, m, blob: host.take(index, FROM_MEMBER.parse(m, blob))
        host.attach(index, connection)
        connection.send({"op": handshake.HELLO})

    def _lost(self, connection: FrameConnection) -> None:
        self._forget(connection)
        attached = self._admitted.pop(connection, None)
        if attached is not None:
            attached[0].detach(attached[1], connection)


def _too_early(connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
    raise ValueError("a frame before the answer to the one before")


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
        complain: Complain = _unheard,
        on_fault: OnFault = of_the_agent,
    ) -> None:
        self.caller = caller
        self._background = Background(on_fault)
        self._on_up = on_up
        self._on_word = on_word
        self._on_lost = on_lost
        self._complain = complain
        self._said = ""
        self._silent = 0
        self._connection: Optional[FrameConnection] = None
        self._task: Optional[asyncio.Task[None]] = None
        self._closed = False
        self._is_silent = False
        loop = asyncio.get_running_loop()
        self._pulse = pulse.Pulse(loop.time())
        self._beating = loop.call_later(pulse.BEAT_S, self._beat)

    def connect(self, address: str) -> None:
        """Connect to this address, leaving any other."""
        self._stop()
        self._task = self._background.task(self._keep(address))

    def send(self, word: FromMember) -> None:
        """Send; without a connection nothing (after the next hello everything is said again)."""
        if self._connection is not None:
            self._connection.send_frame(FROM_MEMBER.encode(word))

    def close(self) -> None:
        """Leave in good order."""
        self._closed = True
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
        if self._task is not None:
            self._task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _keep(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        host, port = split_address(address)
        lost_at, delay = loop.time(), RETRY_S
        while not self._closed:
            gone: asyncio.Future[None] = loop.create_future()
            up = await self._try(host, port, gone)
            if up:
                delay = RETRY_S
                self._on_lost(None)
                await gone
                lost_at = loop.time()
            elif loop.time() - lost_at >= LOST_AFTER_S:
                self._on_lost(lost_at)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RETRY_CAP_S)

    async def _try(self, host: str, port: int, gone: asyncio.Future[None]) -> bool:
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
            if not greeting.done:
                greeting.take(connection, message)
                if greeting.proven:
                    # In this turn: what it sends next may be in the same packet.
                    connection.trust()
                    self._connection = connection
                    self._on_up()
            elif self._connection is connection:
                self._on_word(FROM_LEADER.parse(message, blob))

        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(lambda: FrameConnection(greeted, lost, handshake.REFUSAL_LIMIT), host, port),
                CONNECT_S,
            )
        except (OSError, asyncio.TimeoutError):
            return False
        connection.send(greeting.hello.to_message())
        try:
            # It may be kept waiting until its agent has heard of the attempt; one that is frozen says nothing at all.
            refusal = await asyncio.wait_for(greeting.over, WAITING_S + STRANGER_S)
        except asyncio.TimeoutError:
            connection.abort()
            return False
        except asyncio.CancelledError:
            connection.close()
            raise
        where = f"{join_address(host, port)}, where rank 0's agent should be"
        self._silent = 0 if greeting.heard else self._silent + 1
        if refusal is not None:
            self._tell(f"{where}: {refusal}", greeting.other_version)
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
        self.other_version = False
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
            self.other_version = message.get("kind") == handshake.OTHER_VERSION
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
