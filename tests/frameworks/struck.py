"""Runs a script as it is, and kills rank 1 of the first attempt where it is about to report for the n-th time.

`tj run tests/frameworks/struck.py --workers 2 -- N script.py arguments`; 0: nobody is killed; -N: right behind the n-th
report. What was done since the report before is lost with the rank, and done again.
"""

import os
import runpy
import signal
import sys
from typing import Any

from trainjob.session import calls


def strike_at(number: int) -> None:
    """Killed by SIGKILL, as by the kernel: nothing of Python's runs any more."""
    plain = calls.report
    count = 0

    def report(*arguments: Any, **keywords: Any) -> None:
        nonlocal count
        count += 1
        context = calls.get_context()
        struck = context.rank == 1 and context.attempt == 1
        if struck and count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(*arguments, **keywords)
        if struck and count == -number:
            os.kill(os.getpid(), signal.SIGKILL)

    calls.report = report


if __name__ == "__main__":
    _, number, script, *arguments = sys.argv
    strike_at(int(number))
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
