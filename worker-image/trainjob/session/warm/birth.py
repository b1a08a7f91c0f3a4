"""What a process has of its parent and passes on to each program that it executes. An agent must have of it what it
would have of its launcher, whatever modules have changed in between: with OMP_PROC_BIND, say, a process is bound to one
core as soon as torch is imported.

Asked by `kept`, of which agents are executed, and by `becoming` where a fork starts Python anew. Ranks that are forks
keep what their imports have changed.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from typing import Dict, FrozenSet, Optional, Tuple

_STATUS = "/proc/self/status"
_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))
_FOR_GOOD = re.compile(r"^(Cap(?:Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):\s*(.*)$", re.M)


class Birth:
    """As it is when this is made."""

    def __init__(self) -> None:
        text = _status()
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._ignored = _ignored(text)
        self._umask = _umask(text)
        self.umask = int(self._umask, 8) if self._umask else None
        """To be had again; None: nobody knows it."""
        self._cores = os.sched_getaffinity(0)
        self._limits = _limits()
        self._for_good = _for_good(text)

    def why_not(self) -> Optional[str]:
        """What of it cannot be had again; None: all can."""
        now = _for_good(_status())
        names = sorted({*now, *self._for_good})
        other = next((name for name in names if now.get(name) != self._for_good.get(name)), None)
        return None if other is None else f"what was imported changed {other}, and no agent could have it as it was"

    @property
    def umask_is_same(self) -> bool:
        """No module has set it."""
        return umask() == self._umask

    def again(self) -> None:
        """Have it as it was. Before a program is executed. Raises OSError."""
        for number in _ignored(_status()) ^ self._ignored:
            signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
        if os.sched_getaffinity(0) != self._cores:
            os.sched_setaffinity(0, self._cores)
        for name, limits in _limits().items():
            if limits != self._limits[name]:
                resource.setrlimit(getattr(resource, name), self._limits[name])
        if self.umask is not None:
            os.umask(self.umask)
        # Last: what waits would come before what it should do is set.
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)


def umask() -> str:
    """Of this process, in octal digits; empty where the kernel does not tell it. (`os.umask` tells it by setting it,
    for all threads.)
    """
    return _umask(_status())


def _status() -> str:
    with open(_STATUS, encoding="ascii", errors="replace") as file:
        return file.read()


def _ignored(text: str) -> FrozenSet[int]:
    found = re.search(r"^SigIgn:\s*([0-9a-f]+)", text, re.M)
    bits = int(found[1], 16) if found is not None else 0
    return frozenset(number for number in range(1, signal.NSIG) if bits >> (number - 1) & 1)


def _umask(text: str) -> str:
    found = re.search(r"^Umask:\s*([0-7]+)", text, re.M)
    return "" if found is None else found[1]


def _limits() -> Dict[str, Tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS}


def _for_good(text: str) -> Dict[str, str]:
    """By the words for it."""
    hard = {name: str(limits[1]) for name, limits in _limits().items()}
    nice = {"its priority (nice)": str(os.nice(0)), "its scheduling policy": str(os.sched_getscheduler(0))}
    return {**hard, **nice, **dict(_FOR_GOOD.findall(text))}
