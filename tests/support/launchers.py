"""Processes that hold a local job's lock, as its launcher does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainjob.launch.local import lock

WAITS = "print(held.path, flush=True); sys.stdin.read(); held.release()"
"""It says where its lock is, and has it until its standard input is closed (`communicate()`)."""

_BEGINS = """
import os, subprocess, sys
from trainjob.launch.local import lock
lock.FOLDER = sys.argv[2] or lock.FOLDER
held = lock.JobLock(sys.argv[1])
"""


def local_launcher(folder: str, code: str, at: str | None = None, **environ: str) -> tuple[subprocess.Popen[str], str]:
    """One that has the lock of that folder (`at`: in a place that is its own), and the first line that it says."""
    roots = [str(Path(lock.__file__).parents[3]), str(Path(sys.modules["trainjob_api"].__file__ or "").parents[1])]
    launcher = subprocess.Popen(
        [sys.executable, "-c", _BEGINS + code, folder, at or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), **environ},
    )
    assert launcher.stdout is not None
    return launcher, launcher.stdout.readline().strip()
