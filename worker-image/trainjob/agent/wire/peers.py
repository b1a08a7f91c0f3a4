"""Connections of other agents to this one: who they are is found out here, and then they are passed on.

Made by `work`; what calls is `leader_link`, or who wants files. Until a caller has proven that it knows the secret of
our attempt (`handshake`) it is a stranger: it may send two short frames, has a few seconds for each, and makes way for
the next one when there are many. Who names an attempt that we have not heard of cannot be judged yet and is kept
waiting, as a stranger; who names an older one is sent away.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Callable, Dict, NamedTuple, Optional, Protocol, Tuple

from trainjob.agent.wire import handshake
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_member import FROM_MEMBER, FromMember
from trainjob.agent.wire.handshake import Hello
from trainjob_api import wire

STRANGERS_LIMIT = 1024
"""Connections whose caller is not proven yet; fewer where this process may not open four times as many files, as those
are for members, ranks and checkpoints. Beyond it the oldest is closed: an agent proves itself within milliseconds, and
one that waits for us to hear of its attempt comes back by itself.
"""
BACKLOG = 1024
"""All members may come at once."""
ACCEPTED_AT_ONCE = 32
"""So many connections exist before anybody can count them."""
STRANGER_S = 10.0
"""For each of a stranger's frames."""
WAITING_S = 30.0
"""How long a caller may wait for us to hear of its attempt."""


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


def unheard(text: str, lasting: bool) -> None:
    pass


def strangers_limit(files: int) -> int:
    """`files`: the soft limit of open files; -1 is none."""
    return STRANGERS_LIMIT if files < 0 else max(1, min(STRANGERS_LIMIT, files // 4))


class _Stranger(NamedTuple):
    """One that has connected and is not proven."""

    timer: asyncio.TimerHandle
    hello: Optional[Hello] = None
    nonce: str = ""
    """Ours; empty: it was not answered yet."""


class PeerServer:
    """Accepts peers. `know` names the attempt that this agent is in, and its leader here if it leads."""

    def __init__(self, on_files: OnFiles, complain: Complain = unheard) -> None:
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
        self._limit = strangers_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.port = 0

    async def start(self, host: str) -> None:
        """Listen on a port of the system's choice."""
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.bind((host, 0))
            # What asyncio calls the backlog is also how many it accepts before it comes back to us.
            self._server = await asyncio.get_running_loop().create_server(
                self._connection, sock=listening, backlog=ACCEPTED_AT_ONCE
            )
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        self.port = listening.getsockname()[1]

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
        while len(self._strangers) >= self._limit:
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
            over = f"attempt {hello.attempt} is over: this agent is in attempt {self._attempt}"
            self._refuse(connection, over, handshake.OVER)
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
