"""One rank's connection to its agent, over a Unix socket, and the log buffer.

Made by `link`, one per process. One call that waits for an answer at a time; threads queue up. Must not know what the
calls mean.

A wait has no time-out of its own here: the agent ends it (time-out asked for, a rank gone, a mismatch), and an agent
that dies closes the socket, which ends it with AgentLostError. A second clock could only disagree with the agent's.

A wait can also be left by an exception of the user's own (a signal handler that raises). Whether that call counts is
then known to the agent alone, so this rank makes no further calls: they are refused at once. One that was cut off while
it was sent leaves half a frame behind: what is sent next goes over a new connection.

Nor is the connection ours for good (`connection`): each use begins with a look whether it is still there. A thread that
waits for its answer then waits on over the new one, whoever has made that; the agent repeats what was lost on the way
(`Hello.heard`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Type, TypeVar

from trainjob.session import context, errors, stacks
from trainjob.session.connection import Connection, Vanished
from trainjob_api import contract, wire
from trainjob_api.rank_messages import (
    FROM_RANK,
    TO_RANK,
    AskState,
    Collective,
    Failed,
    Farewell,
    Fetch,
    Fetched,
    FromRank,
    Hello,
    Log,
    LogRow,
    Released,
    Repeated,
    Reported,
    ReportedAre,
    Restore,
    Restored,
    State,
    ToRank,
)
from trainjob_api.typed import BadMessage

FLUSH_INTERVAL_S = 0.2
EXIT_FLUSH_S = 2.0
ROWS_PER_MESSAGE = 500
TRIES = 1000
"""To send a frame, where the program closes all descriptors again and again."""
_CLOSED_AT_ONCE = "the program has closed the descriptor of every new one at once"
LOG_ROWS_KEPT = 65536
"""Rows that wait for a slow agent; beyond it the oldest go, since a step must never wait for its own log."""

Answer = TypeVar("Answer", Released, Restored, Fetched, ReportedAre)


class Line:
    """The connection of one rank. `post` is one way, `call` waits for its answer; both may be used from any thread."""

    def __init__(self, who: context.TrainContext) -> None:
        self.context = who
        # A signal handler may call in the middle of a call of the same thread: that is refused, not waited for.
        self._sending, self._calling, self._flushing = threading.RLock(), threading.RLock(), threading.RLock()
        self._torn = False
        """Nobody knows how much of the last frame was sent."""
        self._left: Optional[str] = None
        """The call that an exception of the user's left before it was answered."""
        self._inside = False
        """That call is still being made."""
        self._collectives = 0
        self._first = 0
        """Number of this program's first greeting; 0: there was none."""
        self._heard = 0
        """Words of the agent, over all connections."""
        self._rows: Deque[LogRow] = deque(maxlen=LOG_ROWS_KEPT)
        self._flusher: Optional[threading.Thread] = None
        self._connection = self._greet()

    def _greet(self) -> Connection:
        who = self.context
        for _ in range(TRIES):
            # Of all programs on this machine: a shell may run several as this rank, and one may become another.
            n = time.monotonic_ns()
            hello = Hello(who.rank, who.attempt, who.world_size, who.local_rank, os.getpid(), n, self._first or n)
            frame = FROM_RANK.encode(hello._replace(heard=self._heard))
            try:
                connection = Connection(who.agent_socket)
            except Vanished:
                continue
            try:
                connection.sendall(frame)
            except OSError as error:
                vanished = not connection.is_there()
                connection.close()
                if vanished:
                    continue
                raise _lost(contract.OP_HELLO, error) from None
            self._first = hello.first
            return connection
        raise _lost(contract.OP_HELLO, OSError(_CLOSED_AT_ONCE))

    def post(self, word: FromRank) -> None:
        """Send without an answer. Raises AgentLostError."""
        self._send(FROM_RANK.encode(word), type(word).__name__.lower())

    def _send(self, frame: bytes, operation: str) -> None:
        with self._sending:
            for _ in range(TRIES):
                self._renew()
                self._torn = True
                try:
                    self._connection.sendall(frame)
                except OSError as error:
                    self._torn = False
                    if self._connection.is_there():
                        raise _lost(operation, error) from None
                    # What is there of the frame is no frame, so it is not heard: once more, over another connection.
                    continue
                self._torn = False
                return
            raise _lost(operation, OSError(_CLOSED_AT_ONCE))

    def _receive(self) -> ToRank:
        """The agent's next word, over whichever connection is ours by then."""
        while True:
            with self._sending:
                self._renew()
                connection = self._connection
            try:
                word = TO_RANK.parse(*wire.receive(connection))
                number = self._heard + 1
                if isinstance(word, Repeated):
                    number, word = word.n, TO_RANK.parse(*wire.receive(connection))
                    if number <= self._heard:
                        continue
            except OSError:
                if connection.is_there() and self._connection is connection:
                    raise
                continue
            self._heard = number
            return word

    def _renew(self) -> None:
        """A new connection where there is none any more for a whole frame."""
        if self._torn or not self._connection.is_there():
            self.abandon()
            stacks.make_readable()
            self._connection = self._greet()

    def collective(self, call: Collective, state: Optional[Callable[[], bytes]] = None) -> Released:
        """One call that all ranks make together: sends it with its number, waits for the release. `state`: asked if
        another rank saves in this call. Raises CollectiveError, AgentLostError.
        """
        with self._calling:
            return self._exchange(call._replace(n=self._collectives + 1), call.kind, Released, state)

    def restore(self, checkpoint_id: Optional[str]) -> Optional[Mapping[str, Any]]:
        """The attempt's own checkpoint (None) or a released one, its files to be fetched; None: there is none."""
        with self._calling:
            return self._exchange(Restore(checkpoint_id), contract.OP_RESTORE, Restored).checkpoint

    def fetch(self, checkpoint_id: str, paths: Optional[Sequence[str]], apart: bool = False) -> str:
        """The local folder in which these files of a restored checkpoint (None: all) are now, verified: to be read, or
        (`apart`) to be handed to user code, which may write to them.
        """
        wanted = Fetch(checkpoint_id, None if paths is None else tuple(paths), apart)
        with self._calling:
            return self._exchange(wanted, contract.OP_FETCH, Fetched).folder

    def reported(self, timeout_s: Optional[float]) -> Sequence[Mapping[str, Any]]:
        """The run's checkpoints on storage, once those that were reported before are there, or the time is over."""
        with self._calling:
            return self._exchange(Reported(timeout_s), contract.OP_REPORTED, ReportedAre).checkpoints

    def _exchange(
        self, word: FromRank, name: str, answer: Type[Answer], state: Optional[Callable[[], bytes]] = None
    ) -> Answer:
        frame, n = FROM_RANK.encode(word), word.n if isinstance(word, Collective) else None
        if self._inside:
            raise errors.CollectiveError(
                f"'{name}' is called while '{self._left}' of the same thread waits for its answer (in a signal "
                "handler?). A rank makes one call after the other: let the handler set a flag and return, and look at "
                "the flag after the call."
            )
        if self._left is not None:
            raise errors.CollectiveError(
                f"An exception (of a signal handler?) left '{self._left}' before it was answered. Whether that call "
                "counts for the other ranks cannot be known here, so this rank can make no further calls. Let the "
                "handler set a flag and return, and look at the flag after the call."
            )
        self._left, self._inside = name, True
        self._collectives = self._collectives if n is None else n
        try:
            self._send(frame, name)
            reply = self._receive()
            while isinstance(reply, AskState) or _is_of_one_before(reply, n):
                if isinstance(reply, AskState) and reply.n == n and state is not None:
                    self._send(FROM_RANK.encode(_taken(n, state)), contract.OP_STATE)
                reply = self._receive()
        except (OSError, BadMessage) as error:
            self._left = None
            raise _lost(name, error) from None
        except errors.AgentLostError:
            self._left = None
            raise
        finally:
            self._inside = False
        self._left = None
        if isinstance(reply, Failed):
            raise errors.from_agent(reply.reason, reply.message, reply.ranks)
        if not isinstance(reply, answer):
            raise _lost(name, BadMessage(f"it answers with {type(reply).__name__}"))
        return reply

    def add_row(self, metrics: Dict[str, Any], step: Optional[int]) -> None:
        """Keep one log row for the flusher thread, which the first row starts."""
        self._rows.append(LogRow(metrics, step, time.time()))
        if self._flusher is None:
            self._start_flusher()

    def flush(self) -> None:
        """Send the rows that wait, in order. Raises AgentLostError."""
        # Also those that the other thread has taken and not sent yet: they come before what is sent next.
        with self._flushing:
            self._send_rows()

    def _send_rows(self) -> None:
        while self._rows:
            rows: List[LogRow] = []
            # popleft is atomic: two flushing threads share the rows, none is sent twice.
            while len(rows) < ROWS_PER_MESSAGE:
                try:
                    rows.append(self._rows.popleft())
                except IndexError:
                    break
            if rows:
                self.post(Log(tuple(rows)))

    def _start_flusher(self) -> None:
        with self._sending:
            if self._flusher is None:
                flusher = threading.Thread(target=self._flush_for_ever, name="trainjob-log", daemon=True)
                # At a limit of processes there may be none for now: the rows leave with the next call, and the next
                # row tries again.
                with contextlib.suppress(RuntimeError):
                    flusher.start()
                    self._flusher = flusher

    def _flush_for_ever(self) -> None:
        while True:
            time.sleep(FLUSH_INTERVAL_S)
            try:
                self.flush()
            except errors.AgentLostError:
                return

    def close(self, code: Optional[int] = None) -> None:
        """Send what waits, say farewell and close: at exit. `code`: that sys.exit() or os._exit() gave, where known."""
        # A flusher that is stuck in send() must not hold up the end of the process.
        if self._sending.acquire(timeout=EXIT_FLUSH_S):
            self._sending.release()
            with contextlib.suppress(errors.AgentLostError, OSError):
                self._renew()
                self._connection.settimeout(EXIT_FLUSH_S)
                self.flush()
                self.post(Farewell(code))
        self.abandon()

    def becomes(self) -> None:
        """Send what waits, and that this process is about to become another program."""
        if self._sending.acquire(timeout=EXIT_FLUSH_S):
            self._sending.release()
            with contextlib.suppress(errors.AgentLostError):
                self.flush()
                self.post(Farewell(becomes=True))

    def abandon(self) -> None:
        """Close without a word: in a forked child, whose parent goes on using the connection."""
        self._connection.close()


def _is_of_one_before(reply: ToRank, n: Optional[int]) -> bool:
    """An answer to a call that was given up before call n."""
    return n is not None and isinstance(reply, (Released, Failed)) and reply.n is not None and reply.n < n


def _taken(n: int, state: Callable[[], bytes]) -> State:
    """Others wait for it: that it cannot be taken is told to them too."""
    try:
        return State(n, blob=state())
    except Exception as error:  # a provider's own
        return State(n, f"{type(error).__name__}: {error}")


def _lost(operation: str, error: Exception) -> errors.AgentLostError:
    return errors.AgentLostError(
        f"The agent of this worker closed the connection during '{operation}' ({error}): the pod is being stopped, "
        "or the agent died. Its own log says why."
    )
