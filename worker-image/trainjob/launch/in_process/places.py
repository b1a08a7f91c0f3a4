"""Which rank this process is, and the folder in which the processes of its job meet."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from trainjob.launch.errors import LaunchError
from trainjob.launch.local import lock
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob

_PATH_LIMIT = 80


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank this process is, as a launcher such as torchrun says, or the only one."""

    rank: int = 0
    world_size: int = 1
    torchrun: bool = False
    key: str = ""
    """The same in all processes of one start of that launcher."""


def place(environ: Mapping[str, str]) -> Place:
    """This process's place. Raises LaunchError inside a TrainJob's rank and under a launcher over several machines."""
    if environ.get(contract.ENV_AGENT_SOCKET):
        raise LaunchError(
            "this process is a rank of a TrainJob already: call the training function itself, or give num_workers=1 "
            "or more to start a job of its own"
        )
    if not (environ.get(contract.ENV_RANK) and environ.get(contract.ENV_WORLD_SIZE)):
        return Place()
    rank, size = int(environ[contract.ENV_RANK]), int(environ[contract.ENV_WORLD_SIZE])
    if int(environ.get(contract.ENV_LOCAL_WORLD_SIZE) or size) != size:
        raise LaunchError(
            f"{environ[contract.ENV_LOCAL_WORLD_SIZE]} of the {size} processes of this launcher are on this machine: a "
            "loop inside its own process works on one machine. `tj submit` runs a job on several"
        )
    # The launcher's own process is the same for all, and another one after each of its starts.
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(
        rank=rank,
        world_size=size,
        torchrun=True,
        key=f"{os.getppid()}-{lock.started(os.getppid())}-{restart}",
    )


def opening(job: TrainJob, where: Place) -> str:
    """The line that says what is about to run."""
    who = f"{where.world_size} ranks, torchrun's processes" if where.torchrun else "1 rank, in this process"
    folder = defaults.job_storage(job)
    saved = f"checkpoints in {folder}" if folder else "no storage"
    return f"{job.metadata.name}: {who} (pid {os.getpid()}); {saved}"


def meeting_folder(key: str) -> str:
    """Where this job's stand-ins look for their processes: short enough for a socket's path; with a key the same in
    all processes that have it.
    """
    above = tempfile.gettempdir()
    above = above if len(os.fsencode(above)) < _PATH_LIMIT - 40 else "/tmp"
    if not key:
        return tempfile.mkdtemp(prefix="trainjob-here-", dir=above)
    path = os.path.join(above, f"trainjob-here-{os.getuid()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if found.st_uid != os.getuid() or os.path.islink(path):
        raise LaunchError(f"{path} belongs to somebody else: set TMPDIR to a folder of your own")
    return path
