"""What is said to a kept parent, over its socket in a folder of the user's own. Called by `keeper` and `shared`."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from typing import IO, Any

from trainjob.launch.local.kept.child import KeptChild
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.process import Launch
from trainjob.session.warm import birth
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    BECOMES,
    FROM_KEPT,
    KEPT_FILES,
    PACKET_LIMIT,
    TO_KEPT,
    Agent,
    Refused,
    Start,
    Take,
    Took,
    packet,
    parse,
)

PATIENCE_S = 30.0
"""From its birth, for one that still imports: a cold start would import the same, in each worker."""
ANSWER_S = 10.0
"""For one that has imported: who does not answer is out of order."""
LEAVE_S = 5.0
"""For one that is to end: else it is killed."""


class NoAnswer(TimeoutError):
    """It is there, and is silent."""


class Taking:
    """Of one agent; another thread may give it up."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: socket.socket | None = None
        self.given_up = False

    def give_up(self) -> None:
        """From now on there is none, unless there is one already."""
        with self._mutex:
            self.given_up = True
            if self._line is not None:
                self._line.shutdown(socket.SHUT_RDWR)  # who waits for a word hears the end

    def taken(self, door: Door, patience_s: float, launch: Launch, output: int) -> KeptChild:
        """An agent of it. Raises OSError: there is none, the text says why; ConnectionError, FileNotFoundError: nobody
        is there any more.
        """
        agent = Agent(tuple(launch.words), launch.environment, launch.working_dir, _umask(), tuple(launch.inherited))
        line = _connected(door, patience_s)
        try:
            self._may_end(line)
            line.send(packet(TO_KEPT, Take()))
            word = _answer(line)
            if not isinstance(word, Took):
                raise OSError(word.why) if isinstance(word, Refused) else ConnectionResetError("it is gone")
            # Before it may end: its number is its own as long as it waits for this word.
            child = KeptChild(line, word)
            try:
                self._become(line, agent, output)
            except BaseException:
                child.send_signal(signal.SIGKILL)  # it may become one yet
                child.close()
                raise
            line.settimeout(None)
            return child
        except BaseException as error:
            with self._mutex:
                self._line = None
            line.close()
            if isinstance(error, TimeoutError):
                raise NoAnswer("it does not answer") from None
            raise

    def _become(self, line: socket.socket, agent: Agent, output: int) -> None:
        reading, writing = os.pipe()
        try:
            try:
                with written(agent) as file:
                    self._may_end(None)
                    fds = [file.fileno(), output, writing, *agent.numbers]
                    socket.send_fds(line, [packet(TO_KEPT, Start())], fds)
            finally:
                os.close(writing)
            _becomes(reading)
        finally:
            os.close(reading)

    def _may_end(self, line: socket.socket | None) -> None:
        with self._mutex:
            if self.given_up:
                raise ConnectionAbortedError("nobody waits for it any more")
            self._line = line


class Takings:
    """Of all agents of a job; from any thread."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Launch, Taking]] = {}

    def of(self, launch: Launch) -> Taking:
        """Always the same."""
        return self._of.setdefault(id(launch), (launch, Taking()))[1]


def may_import(age_s: float) -> bool:
    """One of that age may be too young to answer."""
    return age_s < PATIENCE_S - ANSWER_S


def patience(age_s: float) -> float:
    """How long it may take to answer: what a cold start would take too, and no more."""
    return max(ANSWER_S, PATIENCE_S - age_s)


def _umask() -> int:
    found = birth.umask()
    if not found:
        raise OSError("this kernel does not tell the umask")
    return int(found, 8)


def ask(door: Door, word: Any, patience_s: float = ANSWER_S) -> Any:
    """Its answer. Raises OSError."""
    with _connected(door, patience_s) as line:
        line.send(packet(TO_KEPT, word))
        return _answer(line)


def tell(door: Door, word: Any) -> None:
    """Without waiting: it may import yet. Raises OSError."""
    with _connected(door, ANSWER_S) as line:
        line.send(packet(TO_KEPT, word))


def _answer(line: socket.socket) -> Any:
    data = line.recv(PACKET_LIMIT)
    try:
        return parse(FROM_KEPT, data) if data else None
    except BadMessage as error:
        raise OSError(str(error)) from None


def _connected(door: Door, patience_s: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.settimeout(patience_s)
        with door.address() as address:
            line.connect(address)
    except BaseException:
        line.close()
        raise
    return line


def listening(door: Door) -> socket.socket:
    """The socket on which one is reached."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with door.address() as address:
        listener.bind(address)
    listener.listen(64)
    return listener


def _becomes(reading: int) -> None:
    """Until the process at the other end is the agent. Raises OSError."""
    said, ends = b"", time.monotonic() + ANSWER_S
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
            if said == BECOMES:
                return  # somebody else has that pipe too: a process that was forked meanwhile, say
            raise TimeoutError
        data = os.read(reading, PACKET_LIMIT)
        if not data:
            break
        said += data
    if said != BECOMES:
        why = said.removeprefix(BECOMES).decode(errors="replace")
        raise OSError(f"no agent could be started of it: {why or 'its process ended'}")


def written(word: Any) -> IO[bytes]:
    """In a file without a name."""
    file = os.fdopen(os.memfd_create("kept"), "w+b")
    file.write(packet(KEPT_FILES, word))
    file.flush()
    return file
