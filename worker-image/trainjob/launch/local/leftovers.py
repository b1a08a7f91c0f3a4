"""Finds and kills what a dead pod left running: its session, and processes that left the session but carry the pod's
UID.

Linux (/proc); elsewhere only the session's process group is signalled. Called by `kubelet.py` after an agent ended,
with one pod's identity: nothing else can be hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from trainjob.agent.processes import trackers
from trainjob_api import contract

_POLL_S = 0.01


def kill(session: int, pod_uid: str, timeout_s: float = 5.0) -> int:
    """SIGKILL all of them and wait until they are gone, new ones included. Returns how many there were."""
    seen: set[int] = set()
    began = time.monotonic()
    while True:
        alive = find(session, pod_uid)
        spared = time.monotonic() < began + trackers.SPARED_S
        for pid in alive:
            if not (spared and trackers.is_tracker(pid)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        seen |= alive
        if not alive or time.monotonic() > began + timeout_s:
            return len(seen)
        time.sleep(_POLL_S)


def find(session: int, pod_uid: str) -> set[int]:
    """Living processes of that session, or with that pod's UID in their environment; zombies are not alive."""
    mark = f"{contract.ENV_POD_UID}={pod_uid}".encode()
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:  # no Linux
        return set()
    return {
        int(name) for name in names if name.isdigit() and int(name) != os.getpid() and _belongs(name, session, mark)
    }


def _belongs(name: str, session: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):
            return False
        if int(fields[3]) == session:
            return True
        with open(f"/proc/{name}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except (OSError, IndexError):
        return False
