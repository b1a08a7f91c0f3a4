"""What the companion says on its standard output, which the process that trains reads.

That process may stand still (a debugger that holds all its threads, a call that keeps the interpreter to itself), and a
pipe holds 64 KiB: a thread writes, and the operator's loop never waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Mapping

STATUS = "status"
"""The word of which the newest alone counts."""


class Telling:
    """Lines of JSON, in their order, to a reader who may be slow. `close` waits until the last is written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[Mapping[str, object]] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="what is told", daemon=True)
        self._thread.start()

    def tell(self, said: Mapping[str, object]) -> None:
        """Does not wait. A status takes the place of one that nobody has read yet."""
        with self._changed:
            if STATUS in said:
                self._waiting = deque(each for each in self._waiting if STATUS not in each)
            self._waiting.append(said)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more is told."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader has gone
            while True:
                with self._changed:
                    while not self._waiting:
                        if self._closed:
                            return
                        self._changed.wait()
                    said = self._waiting.popleft()
                # A line of its own, whatever somebody else has written there before.
                data = memoryview(b"\n" + json.dumps(said).encode() + b"\n")
                while data:
                    data = data[os.write(self._descriptor, data) :]


def own_output() -> int:
    """A descriptor of standard output for these words alone: what others print goes to standard error from now on."""
    descriptor = os.dup(1)
    with contextlib.suppress(OSError):  # there is none
        os.dup2(2, 1)
    return descriptor
