"""An exception of torch that only says that a process of a DataLoader was killed: the kill ended the rank. Pure.

A kill for memory that the kernel has counted is told before, by `memory`.
"""

from __future__ import annotations

import re
import signal
from typing import Dict, Optional

from trainjob_api import contract
from trainjob_api.contract import RankError

_KILLED = re.compile(r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>[^.\n]+)")
"""torch's words, wherever in the rank's main thread the signal of its child's end came in."""
_WHY: Dict[int, str] = {
    signal.SIGKILL: " (by somebody, or by the kernel because memory ran out: `dmesg | tail` shows its kills)",
    signal.SIGBUS: " (shared memory ran out: /dev/shm)",
}


def killed(error: Optional[RankError]) -> Optional[RankError]:
    """The same end told as what it is, with the traceback; None: it is something else."""
    told = error or {}
    found = _KILLED.search(told.get("message") or "") or _KILLED.search(told.get("traceback") or "")
    if found is None:
        return None
    number = _number(found["signal"].strip())
    name = found["signal"].strip() if number is None else signal.Signals(number).name
    message = f"process {found['pid']} of it was killed by {name}{_WHY.get(number or 0, '')}"
    return {"type": contract.LOADER_KILLED, "message": message, "traceback": told.get("traceback") or ""}


def _number(name: str) -> Optional[int]:
    return next((int(each) for each in signal.valid_signals() if signal.strsignal(each) == name), None)
