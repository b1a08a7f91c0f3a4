"""The Unix socket on which this agent's ranks call it. One server per attempt, so that no rank of an older one can be
heard.

Called by `attempt`. Knows who called; what a call means is for `member`.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from trainjob.agent.processes.reaper import Process
from trainjob.agent.wire.frames import FrameConnection
from trainjob_api import wire
from trainjob_api.rank_messages import (
    FROM_RANK,
    TO_RANK,
    AskState,
    Collective,
    Failed,
    Farewell,
    Fetch,
    FromRank,
    Hello,
    Released,
    Repeated,
    Reported,
    Restore,
    State,
    ToRank,
)

SOCKET_PATH_LIMIT = 107
"""Bytes of the longest path that a socket can have."""
LONGEST_NAME = "/t/pymp-12345678_123456_/listener-12345678_123456_"
"""Of what is to have room in the folder: the ranks' TMPDIR, where that is a link in it, and below it what
multiprocessing listens on when it hands tensors over, each name marked as theirs.
"""
SHORT_PREFIX = "/tmp/trainjob-"
OnCall = Callable[[int, FromRank], None]
OnHello = Callable[[Hello, bool], None]
"""And whether it is the first that is read of its program."""
OnParted = Callable[[int, Process, Optional[Farewell]], None]
"""A rank's last connection is gone: whose it was, and its farewell."""


class SocketFolder:
    """Where sockets and stack files lie: in the work dir, or in a short folder of our own when that path is too long
    for a socket.
    """

    def __init__(self, work_dir: str, pod_uid: str) -> None:
        self.path = os.path.join(work_dir, "run")
        # Nothing of an earlier agent in this pod may be mistaken for ours.
        shutil.rmtree(self.path, ignore_errors=True)
        if len(os.fsencode(self.path)) + len(LONGEST_NAME) <= SOCKET_PATH_LIMIT:
            os.makedirs(self.path, mode=0o700)
            return
        # The name tells whose it is: the launcher removes it if this agent is killed.
        short = f"{SHORT_PREFIX}{pod_uid[:8]}-"
        for older in glob.glob(glob.escape(short) + "*"):
            if os.lstat(older).st_uid == os.getuid():
                shutil.rmtree(older, ignore_errors=True)
        self.path = tempfile.mkdtemp(prefix=os.path.basename(short), dir=os.path.dirname(short))

    def remove(self) -> None:
        """At the agent's end."""
        shutil.rmtree(self.path, ignore_errors=True)


class _Speaker(NamedTuple):
    """Of one connection."""

    rank: int
    pid: Optional[int]
    n: int
    """Of its greeting."""
    program: _Program


@dataclass
class _Program:
    """One that speaks as a rank, or has: a shell may run several, one may become another, and a child of one may speak
    beside it.
    """

    first: int
    """The number of its first greeting."""
    before: int
    """Calls that all ranks make together, of programs before this one: each counts its own from 1."""
    words: int = 0
    """Said to it; the last one it may have lost."""
    last: bytes = b""


class RankServer:
    """Connections of the ranks of one attempt."""

    def __init__(
        self, attempt: int, folder: str, on_hello: OnHello, on_call: OnCall, on_parted: Optional[OnParted] = None
    ) -> None:
        self.path = os.path.join(folder, f"a{attempt}.sock")
        self._attempt = attempt
        self._on_hello = on_hello
        self._on_call = on_call
        self._on_parted = on_parted
        self._processes: Dict[FrameConnection, Process] = {}
        self._farewells: Dict[FrameConnection, Tuple[int, Farewell]] = {}
        """With the number of the greeting after which it was said."""
        self._connections: Dict[int, FrameConnection] = {}
        self._speakers: Dict[FrameConnection, _Speaker] = {}
        self._programs: Dict[int, Dict[int, _Program]] = {}
        """Of each rank, by their first greeting."""
        self._asked: Dict[Tuple[int, bool], _Program] = {}
        """Who made a rank's last call, of those that all ranks make together and of the others: it is answered."""
        self._closed: Dict[int, asyncio.Future[None]] = {}
        self._made: Dict[int, int] = {}
        """Calls of each rank that all ranks make together, over all its programs."""
        self._server: Optional[asyncio.AbstractServer] = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: FrameConnection(self._frame, self._lost), self.path)
        os.chmod(self.path, 0o600)

    def send(self, rank: int, word: ToRank) -> None:
        """To the program of a rank that has asked, if it is still connected or connects anew."""
        together = isinstance(word, (AskState, Released, Failed)) and word.n is not None
        program = self._asked.get((rank, together))
        if program is None:
            return
        if isinstance(word, (AskState, Released, Failed)) and word.n is not None:
            word = word._replace(n=word.n - program.before)
        self._say(rank, program, TO_RANK.encode(word))

    def pid_of(self, rank: int) -> Optional[int]:
        """The process that speaks as this rank, as the kernel saw it connect; None: nobody does."""
        connection = self._connections.get(rank)
        return None if connection is None else connection.peer_pid

    def send_frame(self, rank: int, frame: bytes) -> None:
        """The same of a release that is encoded already: several ranks share it."""
        program = self._asked.get((rank, True))
        if program is not None:
            self._say(rank, program, frame)

    def _say(self, rank: int, program: _Program, frame: bytes) -> None:
        program.words, program.last = program.words + 1, frame
        connection = self._connections.get(rank)
        if connection is None or self._speakers[connection].program is not program:
            others = [each for each in self._of(rank) if self._speakers[each].program is program]
            connection = max(others, key=self._number, default=None)
        if connection is not None:
            connection.send_frame(frame)

    def pids(self) -> List[int]:
        """All processes that speak as ranks."""
        return list(self.speakers().values())

    def speakers(self) -> Dict[int, int]:
        """The same by rank."""
        found = ((rank, connection.peer_pid) for rank, connection in self._connections.items())
        return {rank: pid for rank, pid in found if pid is not None}

    def read_to_end(self, rank: Optional[int]) -> asyncio.Future[Any]:
        """Done when the rank's connection has been read to its end (at once if there is none); None: all ranks'."""
        if rank is None:
            return asyncio.gather(*map(self.read_to_end, list(self._connections)))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if rank in self._connections:
            self._closed[rank] = future
        else:
            future.set_result(None)
        return future

    def close(self) -> None:
        """Close all connections and remove the socket."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.abort()
        # Its folder goes with the agent; nobody can connect to what is left of it.
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _frame(self, connection: FrameConnection, message: wire.Message, blob: bytes) -> None:
        speaker, word = self._speakers.get(connection), FROM_RANK.parse(message, blob)
        if speaker is None:
            if not isinstance(word, Hello) or word.attempt != self._attempt:
                raise ValueError("the first frame of a rank is its hello, with this attempt's number")
            self._greeted(connection, word)
            return
        rank = speaker.rank
        if isinstance(word, Farewell):
            self._farewells[connection] = speaker.n, word
            return
        if self._farewells.get(connection, (0,))[0] <= speaker.n:
            self._farewells.pop(connection, None)
        if isinstance(word, (Collective, State)):
            word = word._replace(n=word.n + speaker.program.before)
        if isinstance(word, Collective):
            self._made[rank] = max(word.n, self._made.get(rank, 0))
        if isinstance(word, (Collective, Restore, Fetch, Reported)):
            self._asked[rank, isinstance(word, Collective)] = speaker.program
        self._on_call(rank, word)

    def _greeted(self, connection: FrameConnection, hello: Hello) -> None:
        rank = hello.rank
        programs = self._programs.setdefault(rank, {})
        newest_program = max(programs, default=0)
        is_new = hello.first > newest_program
        if hello.first not in programs:
            # Of one that is read after that of a newer program nobody knows how many calls came before it.
            before = self._made.get(rank, 0) if is_new or not newest_program else programs[newest_program].before
            programs[hello.first] = _Program(hello.first, before)
        program = programs[hello.first]
        speaker = self._speakers[connection] = _Speaker(rank, connection.peer_pid, hello.n, program)
        if self._on_parted is not None and speaker.pid is not None:
            process = Process.of(speaker.pid)
            if process is not None:
                self._processes[connection] = process
        own = [each for each in self._of(rank) if self._speakers[each].pid == speaker.pid]
        newest = max(own, key=self._number)
        for older in own:
            # The program has lost them. What it said there is heard; where one of its threads still waits at one for an
            # answer, though its descriptor is closed, it reads an end, and waits on at the newest.
            if older is not newest:
                older.say_no_more()
        if newest is not connection:
            return
        # A newer program may have been read before; a parent that connects anew greets after its child.
        if max(self._of(rank), key=self._number) is connection:
            self._connections[rank] = connection
            self._on_hello(hello, is_new)
        if program.words > hello.heard:
            connection.send_frame(TO_RANK.encode(Repeated(program.words)))
            connection.send_frame(program.last)

    def _number(self, connection: FrameConnection) -> int:
        return self._speakers[connection].n

    def _of(self, rank: int) -> List[FrameConnection]:
        return [connection for connection, speaker in self._speakers.items() if speaker.rank == rank]

    def _lost(self, connection: FrameConnection) -> None:
        speaker = self._speakers.pop(connection, None)
        process, farewell = self._processes.pop(connection, None), self._farewells.pop(connection, None)
        if speaker is None or self._connections.get(speaker.rank) is not connection:
            return
        rank = speaker.rank
        del self._connections[rank]
        others = self._of(rank)
        if others:
            # Those that its program had lost before are not read to their end yet; or a child of the rank's had called
            # as well.
            heir = self._connections[rank] = max(others, key=self._number)
            if farewell is not None and self._speakers[heir].pid == speaker.pid:
                self._farewells[heir] = farewell
            return
        if self._on_parted is not None and process is not None:
            self._on_parted(rank, process, None if farewell is None else farewell[1])
        waiting = self._closed.pop(rank, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
