"""A rank's life is tied to its agent's, whose child it is. Called at its boot, by the warm parent and its forks, and by
what starts mpirun and its daemons.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def tie_to(agent: int) -> None:
    """Die when this process does, whose child we are."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before prctl took hold: then nobody sends the signal.
    if os.getppid() != agent:
        os.kill(os.getpid(), signal.SIGKILL)
