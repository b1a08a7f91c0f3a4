"""Ties a foreign program (torchrun, a shell) to the agent's life, then becomes it. Run as a script: `tether.py <agent's
pid> command...`.

Ranks of a plain python command do this themselves (trainjob.session.rank). The kernel keeps the setting over exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the parent-death signal, look whether the parent is still there, exec."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
