"""What outlives the agent's process in the pod's own volume: how often it started, and the last attempt it forked ranks
for.

Called by `agent`. The boot number lets the coordinator order messages; the attempt note is why no attempt is started
twice. Both need to survive the process, not the machine: a pod does not come back after its node did.
"""

from __future__ import annotations

import os


class BootNotes:
    """Two small files in the work dir, replaced whole."""

    def __init__(self, work_dir: str) -> None:
        self._boot = os.path.join(work_dir, "boot")
        self._attempt = os.path.join(work_dir, "attempt")

    def count_boot(self) -> int:
        """Number of this start, from 1."""
        boot = _read(self._boot) + 1
        _write(self._boot, boot)
        return boot

    def started_attempt(self) -> int:
        """The newest attempt whose ranks were started in this pod; 0: none."""
        return _read(self._attempt)

    def note_attempt(self, attempt: int) -> None:
        """Before the first fork for an attempt."""
        _write(self._attempt, attempt)


def _read(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def _write(path: str, number: int) -> None:
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(str(number))
    os.replace(path + ".new", path)
