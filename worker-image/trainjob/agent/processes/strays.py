"""Processes of an attempt that left its ranks' groups: helpers with a session of their own (a logger's service, a
compile worker). None survives the attempt: it would hold GPU memory and ports of the next one.

Called by `attempt` once its ranks are reaped. What earlier agents of the pod left is their container's, or the local
backend's, to end.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, List

from trainjob.agent.processes import family, trackers
from trainjob.agent.processes.reaper import signal_process
from trainjob_api import contract

POLL_S = 0.02
WAIT_S = 5.0
EMPTY_LOOKS = 2
"""A look misses a process whose parent ends meanwhile: it becomes the agent's child after those were read."""


def end(pod_uid: str) -> List[int]:
    """Kill all that an attempt of this pod has started; they are known by their environment. Those that were killed,
    once they are gone. Blocking.
    """
    return end_found(lambda: _living(pod_uid))


def end_found(look: Callable[[], List[int]]) -> List[int]:
    """Kill what looks find, until EMPTY_LOOKS in a row find nothing, for WAIT_S at most."""
    found: List[int] = []
    began = time.monotonic()
    empty = 0
    while time.monotonic() < began + WAIT_S:
        left = look()
        empty = 0 if left else empty + 1
        if empty == EMPTY_LOOKS:
            break
        spared = time.monotonic() < began + trackers.SPARED_S
        living = [pid for pid in left if not (spared and trackers.is_tracker(pid))]
        for pid in living:
            signal_process(pid, signal.SIGKILL)
        found += [pid for pid in living if pid not in found]
        time.sleep(POLL_S)
    return found


def _living(pod_uid: str) -> List[int]:
    pod = f"{contract.ENV_POD_UID}={pod_uid}".encode()
    attempt = f"{contract.ENV_ATTEMPT}=".encode()
    return [pid for pid in family.below() if _is_ours(pid, pod, attempt)]


def _is_ours(pid: int, pod: bytes, attempt: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            # A zombie has none.
            variables = file.read().split(b"\0")
    except OSError:
        return False
    # The agent and its storage child belong to no attempt.
    return pod in variables and any(variable.startswith(attempt) for variable in variables)
