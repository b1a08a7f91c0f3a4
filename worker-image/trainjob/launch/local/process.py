"""One child process with its output as lines and its end as a future.

asyncio's own subprocess is not used: its `wait()` returns only when the output pipe is closed too, and a process that
the child left behind may hold that open for ever, which is just when the kubelet has to act. Called by `kubelet.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_READ_BYTES = 64 * 1024
_LINE_BYTES = 1024 * 1024
_FULL_S = 0.1
"""So long lines wait at least that nobody takes."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start."""

    words: Sequence[str]
    environment: Mapping[str, str]
    working_dir: str
    inherited: Sequence[int]
    """Descriptors that the child gets."""


class Child(Protocol):
    """What `start` makes."""

    pid: int

    def wait(self) -> int:
        """Block until its end; the exit code, or minus the signal's number."""
        ...

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        ...


class Kept(Protocol):
    """Another way to start a child: a process that is warm already."""

    def take(self, launch: Launch, output: int) -> Child | None:
        """Blocks. None: there is none for it. `output`: closed by this."""
        ...

    def give_up(self, launch: Launch) -> None:
        """Nobody wants it any more: who takes it waits no longer. From another thread."""
        ...


def start(launch: Launch, output: int) -> Child:
    """A child of this process. Raises OSError when it cannot be started."""
    return subprocess.Popen(
        list(launch.words),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=launch.working_dir,
        env=dict(launch.environment),
        start_new_session=True,
        pass_fds=launch.inherited,
    )


class Process:
    """A running child, leader of a session of its own. Make and use it in a running event loop."""

    def __init__(
        self, child: Child, reading: int, on_line: Callable[[str], None], is_full: Callable[[], bool] = lambda: False
    ) -> None:
        """`reading`: of the pipe that it writes to. `is_full`: whether what it writes has to wait there, as long as it
        lives. Raises OSError, RuntimeError: nobody watches it.
        """
        self._loop = asyncio.get_running_loop()
        self._on_line, self._is_full = on_line, is_full
        self._rest = b""
        self._reading = reading
        self._child = child
        self.pid = child.pid
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """The exit code, or minus the signal's number."""
        self.drained = asyncio.Event()
        """The output has been read to its end."""
        self.waits = False
        """What it writes has waited for room: at the end, more than was read may have been meant to come."""
        os.set_blocking(self._reading, False)
        threading.Thread(target=self._wait, name=f"end of {self.pid}", daemon=True).start()
        self._loop.add_reader(self._reading, self._read)

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return not self.ended.done()

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself; nothing happens when it has ended."""
        self._child.send_signal(number)

    async def close(self, timeout_s: float) -> None:
        """Read what is left of the output, for so long at most, and close it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.drained.wait()
        except TimeoutError:
            self._finish()

    def _wait(self) -> None:
        code = self._child.wait()
        try:
            self._loop.call_soon_threadsafe(self._set_ended, code)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _set_ended(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    def _read(self) -> None:
        if self.alive:
            self.waits = self._is_full()
            if self.waits:
                self._loop.remove_reader(self._reading)
                self._loop.call_later(_FULL_S, self._read_on)
                return
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._finish()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LINE_BYTES:
            line, self._rest = self._rest, b""
            self._tell(line)

    def _read_on(self) -> None:
        if not self.drained.is_set():
            self._loop.add_reader(self._reading, self._read)

    def _finish(self) -> None:
        if self.drained.is_set():
            return
        self.drained.set()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        if self._rest:
            self._tell(self._rest)

    def _tell(self, line: bytes) -> None:
        self._on_line(line.decode(errors="replace").rstrip("\r"))
