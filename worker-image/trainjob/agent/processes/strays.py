"""Processes of an attempt that left its ranks' groups: helpers with a session of their own (a logger's service, a
compile worker). None survives the attempt: it would hold GPU memory and ports of the next one.

Called by `attempt` once its ranks are reaped. What earlier agents of the pod left is their container's, or the local
backend's, to end.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, List, NamedTuple, Optional

from trainjob.agent.processes import family, trackers
from trainjob.agent.processes.rank_command import SESSION_MODULE
from trainjob.agent.processes.reaper import signal_process
from trainjob_api import contract

_WARM = tuple(f"\0{SESSION_MODULE}\0{word}\0".encode() for word in (contract.WARM, contract.KEEP))
"""In the command line of a warm parent, and of its forks until they are ranks."""
POLL_S = 0.02
WAIT_S = 5.0
UNCLEAR_S = 0.2
"""A process that is neither one nor another for longer is being executed no more: it shows nobody what it is."""
EMPTY_LOOKS = 2
"""A look misses a process whose parent ends meanwhile: it becomes the agent's child after those were read. By the next
look it is one, so the two need no pause between them.
"""


class Look(NamedTuple):
    """At what is there."""

    strays: List[int]
    is_clear: bool = True
    """Else some process is being executed, and may be one."""


def end(pod_uid: str, attempt: int) -> List[int]:
    """Kill all that this pod's attempts have started, up to this one. Those that were killed, once they are gone.
    Blocking.
    """
    return end_found(lambda: _living(pod_uid, attempt))


def end_found(look: Callable[[], Look]) -> List[int]:
    """Kill what looks find, until EMPTY_LOOKS in a row find nothing, for WAIT_S at most."""
    found: List[int] = []
    began = time.monotonic()
    empty = 0
    while time.monotonic() < began + WAIT_S:
        left, is_clear = look()
        is_clear = is_clear or time.monotonic() > began + UNCLEAR_S
        if is_clear and not left:
            empty += 1
            if empty == EMPTY_LOOKS:
                break
            continue
        empty = 0
        spared = time.monotonic() < began + trackers.SPARED_S
        living = [pid for pid in left if not (spared and trackers.is_tracker(pid))]
        for pid in living:
            signal_process(pid, signal.SIGKILL)
        found += [pid for pid in living if pid not in found]
        time.sleep(POLL_S)
    return found


def _living(pod_uid: str, attempt: int) -> Look:
    is_stray = _is_not_the_agents if family.is_known() else _names_its_attempt
    verdicts = {pid: is_stray(pid, pod_uid, attempt) for pid in family.below()}
    return Look([pid for pid, verdict in verdicts.items() if verdict], None not in verdicts.values())


def _is_not_the_agents(pid: int, pod_uid: str, attempt: int) -> Optional[bool]:
    """Of a descendant of this agent. A helper may have no environment, or have written over it (setproctitle), and is
    known by not being the agent's own: those have the pod's variables, or are forks of a warm parent. None: it is being
    executed, and may be anybody's.
    """
    environ, line = _read(pid, "environ"), _read(pid, "cmdline")
    if environ is None or line is None or not _runs(pid):
        return False
    if not environ and not line:
        return None
    if any(mark in line for mark in _WARM):
        return False
    variables = environ.split(b"\0")
    number = _attempt(variables)
    if f"{contract.ENV_POD_UID}={pod_uid}".encode() not in variables:
        return True
    return number is not None and number <= attempt


def _names_its_attempt(pid: int, pod_uid: str, attempt: int) -> bool:
    """Of any process of this machine. The agent and its storage child belong to no attempt."""
    variables = (_read(pid, "environ") or b"").split(b"\0")
    number = _attempt(variables)
    return f"{contract.ENV_POD_UID}={pod_uid}".encode() in variables and number is not None and number <= attempt


def _attempt(variables: List[bytes]) -> Optional[int]:
    """A rank of the next one may be there before who looked for this one's has done."""
    name = f"{contract.ENV_ATTEMPT}=".encode()
    value = next((each[len(name) :] for each in variables if each.startswith(name)), b"")
    return int(value) if value.isdigit() else None


def _read(pid: int, name: str) -> Optional[bytes]:
    """None: it is gone. Nothing: there is none (a zombie has none), or it is not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except PermissionError:
        return b""
    except OSError:
        return None


def _runs(pid: int) -> bool:
    stat = _read(pid, "stat") or b"() X"
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
