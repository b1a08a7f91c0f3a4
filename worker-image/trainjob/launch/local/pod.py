"""The agent as the local backend starts it: `python -m trainjob.launch.local.pod -- <the user's command>`.

Runs the agent in this very process. When the launcher was killed, nobody else is there to clean up: the agent has
stored what it held by then, and the last one of them removes the job's private folder and its name's lock. Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

from trainjob.launch.local import lock, scratch
from trainjob_api import contract

ENV_SCRATCH = "TRAINJOB_LOCAL_SCRATCH"
ENV_SCRATCH_FD = "TRAINJOB_LOCAL_SCRATCH_FD"
ENV_LOCK = "TRAINJOB_LOCAL_LOCK"
"""Path of the job name's lock file, which this process holds through an inherited descriptor; absent for jobs
without storage.
"""


def main() -> int:
    """The agent's exit code."""
    folder, descriptor = os.environ.pop(ENV_SCRATCH, ""), os.environ.pop(ENV_SCRATCH_FD, "")
    name_lock = os.environ.pop(ENV_LOCK, "")
    work_dir = os.environ.get(contract.ENV_WORK_DIR, "")
    from trainjob.agent.__main__ import main as agent

    code = agent()
    if code == contract.EXIT_LAUNCHER_DIED and folder and descriptor:
        shutil.rmtree(work_dir, ignore_errors=True)
        if scratch.remove_if_last(folder, int(descriptor)) and name_lock:
            lock.remove(name_lock)
    return code


if __name__ == "__main__":
    code = main()
    # The pipe may have lost its reader, and threads may still wait for a storage that hangs: no teardown of the
    # interpreter.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)
