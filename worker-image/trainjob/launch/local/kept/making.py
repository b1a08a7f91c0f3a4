"""Starts a parent that agents can be started of. Called by `keeper` and `shared`, which say when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from trainjob.agent.processes import rank_command
from trainjob.launch.local.kept import line
from trainjob.launch.local.kept.door import Door
from trainjob_api import contract
from trainjob_api.warm_messages import ENV_ROOM, Keep

_ARGV_ROOM, _ENV_ROOM = 4096, 16 * 1024
"""Bytes for the command line and the variables that a rank shows."""


def now() -> float:
    """Of the clock that such a parent looks at."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start(
    keep: Keep,
    environ: Mapping[str, str],
    working_dir: str,
    log: str,
    inherited: Sequence[int] = (),
    flags: Sequence[str] = (),
) -> tuple[subprocess.Popen[bytes], Door]:
    """One that imports, in a session of its own, and where it is reached. `log`: a path; `flags`: of its Python.
    Raises OSError.
    """
    door = Door(*os.path.split(keep.socket))
    with line.listening(door) as listener, line.written(keep) as order:
        fds = (listener.fileno(), order.fileno())
        does = [contract.KEEP, f"{fds[0]}:{fds[1]}", "_" * _ARGV_ROOM]
        words = [sys.executable, *flags, "-m", rank_command.SESSION_MODULE, *does]
        try:
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    words,
                    env={**environ, ENV_ROOM: "_" * _ENV_ROOM},
                    cwd=working_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(*fds, *inherited),
                    start_new_session=True,
                )
        except BaseException:
            door.remove()
            raise
    return process, door


def kill(process: subprocess.Popen[bytes], door: Door) -> None:
    """Nothing that it holds is needed; what was started of it goes on."""
    process.kill()
    process.wait()
    door.remove()
