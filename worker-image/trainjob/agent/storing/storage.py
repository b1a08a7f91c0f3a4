"""The client of the storage child (`python -m trainjob.checkpoint.storage_child.child`): one process that alone touches
the job's storage.

Called by `leader`'s parts, `saving` and `restore`. A child that dies fails what was asked of it and is started anew by
the next call; it ends by itself when the agent's end of its stdin is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, cast

from trainjob.agent.processes.reaper import Reaper, signal_group, was_killed
from trainjob.checkpoint.errors import INTERNAL

CHILD = ("-m", "trainjob.checkpoint.storage_child.child")
OnProgress = Callable[[int], None]
CHILD_TRIES = 3
CHILD_DIED = "child"
"""The one kind of errors that is not the storage's word."""
KILLED_S = 2.0
"""For one that is killed to be gone; in the kernel, waiting for a file system, it may stay longer than its agent."""


class StorageError(Exception):
    """The storage refused; `kind` is one of `trainjob.checkpoint.errors`, or `child` when the child process itself
    died.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StorageChild(asyncio.Protocol):
    """`call` an operation of the child, by name."""

    def __init__(self, reaper: Reaper, storage: str, work_dir: str) -> None:
        self.storage = storage
        self._reaper = reaper
        self._work_dir = work_dir
        self._transport: Optional[asyncio.Transport] = None
        self._starting: Optional[asyncio.Task[None]] = None
        self._rest = b""
        self._number = 0
        self._calls: Dict[int, Tuple[asyncio.Future[Dict[str, Any]], Optional[OnProgress]]] = {}
        self._ended: Optional[asyncio.Future[None]] = None
        self._pid = 0
        self.moved = 0
        """Bytes that the child has moved since its start, finished calls included."""
        self._moving: Dict[int, int] = {}
        self.probed = False
        """It was tried whether the storage can do what commits need."""
        self.refused_at_first = False
        """It has refused the job's first start, and no start since has had its answer."""

    async def call(
        self, op: str, fields: Mapping[str, Any], on_progress: Optional[OnProgress] = None
    ) -> Dict[str, Any]:
        """The reply of one operation. Raises StorageError. How long it may take is the caller's affair."""
        transport = await self._connected()
        self._number += 1
        number = self._number
        reply: asyncio.Future[Dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = (reply, on_progress)
        request = {"id": number, "op": op, "storage": self.storage, **fields}
        transport.write(json.dumps(request).encode() + b"\n")
        try:
            return await reply
        finally:
            self._calls.pop(number, None)
            self._moving.pop(number, None)

    def start(self) -> None:
        """Start the child ahead of its first call, which tells of trouble with that."""
        self._begin().add_done_callback(lambda starting: starting.cancelled() or starting.exception())

    def _begin(self) -> asyncio.Task[None]:
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start())
        return self._starting

    async def _connected(self) -> asyncio.Transport:
        if self._transport is None:
            try:
                await asyncio.shield(self._begin())
            except OSError as error:
                raise StorageError(
                    CHILD_DIED, f"the storage child cannot be started: {error}; it is tried again"
                ) from error
        if self._transport is None:
            raise StorageError(CHILD_DIED, "the storage child ended as soon as it was started; it is tried again")
        return self._transport

    async def close(self, timeout_s: float) -> None:
        """Let it finish what is in flight, but no longer than this; then it is killed."""
        if self._transport is not None:
            self._transport.close()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=timeout_s)
            if not self._ended.done():
                # A storage that hangs must not keep a process of ours.
                signal_group(self._pid, signal.SIGKILL)
                await asyncio.wait([self._ended], timeout=KILLED_S)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # Not in the user's folder: `-m` would import from there.
                process = subprocess.Popen(  # noqa: ASYNC220 - a millisecond, and the reaper needs the fork in its turn
                    [sys.executable, *CHILD],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    cwd=self._work_dir,
                    env=child_environment(),
                    start_new_session=True,
                )
            process.returncode = 0  # collected by the reaper
            ended: asyncio.Future[None] = loop.create_future()
            self._pid, self._ended = process.pid, ended
            self._reaper.watch(process.pid, lambda status: self._gone(status, ended), group=True)
            await loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise

    def _gone(self, status: int, ended: asyncio.Future[None]) -> None:
        if was_killed(status):
            self._reaper.kills.claim()
        if not ended.done():
            ended.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._take(json.loads(line))

    def _take(self, reply: Dict[str, Any]) -> None:
        number = int(reply.get("id") or 0)
        future, on_progress = self._calls.get(number, (None, None))
        if "progress" in reply:
            moved = int(reply["progress"])
            self.moved += moved - self._moving.get(number, 0)
            self._moving[number] = moved
            if on_progress is not None:
                on_progress(self.moved)
        elif future is not None and not future.done():
            if reply.get("ok"):
                future.set_result(reply)
            else:
                error = reply.get("error") or {}
                future.set_exception(
                    StorageError(
                        str(error.get("kind", INTERNAL)),
                        str(error.get("message", "the storage child gave no reason")),
                    )
                )

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._transport = None
        for future, _ in list(self._calls.values()):
            if not future.done():
                future.set_exception(
                    StorageError(
                        CHILD_DIED, f"the storage child ended while it worked on {self.storage}; it is started again"
                    )
                )


async def ask(storage: StorageChild, op: str, fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Of what others wait for: a storage child that was killed over it (out of memory?) is started anew and asked
    again, which says nothing of the storage.
    """
    for _ in range(CHILD_TRIES - 1):
        try:
            return await storage.call(op, fields)
        except StorageError as error:
            if error.kind != CHILD_DIED:
                raise
    return await storage.call(op, fields)


def child_environment() -> Dict[str, str]:
    """A child of the agent's imports what the agent imports, wherever that came from."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(
        p for p in sys.path if p and os.path.isabs(p) and os.path.isdir(p) and not _is_stdlib(p)
    )
    return env


def _is_stdlib(path: str) -> bool:
    return path.startswith(os.path.dirname(os.__file__)) or path == os.path.dirname(os.path.dirname(os.__file__))
