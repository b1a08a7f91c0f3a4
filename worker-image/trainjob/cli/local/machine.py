"""What `tj doctor` looks at on this machine: what a job of `tj run` and `fit()` needs here.

`look` asks the machine, `judge` says what that means; nothing is imported that takes seconds, torch neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util

from trainjob.agent.processes import accelerators, cores, memory, open_files
from trainjob.agent.warm import choice
from trainjob.cli.finding import Finding, Level
from trainjob.launch.job import DEFAULT_STORAGE
from trainjob.launch.local import gpus
from trainjob.screen import wording
from trainjob_api import contract

GIB = 1 << 30
SHM_LEAST = GIB
"""Below it DataLoader workers of a usual job end with a bus error."""
DISK_LEAST = 5 * GIB
MEMORY_LEAST = 2 * GIB
FEW_WORKERS = 64
"""More than that no machine trains; where open files allow fewer, something limits them that was not meant to."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was seen. Sizes in bytes; None: it cannot be told."""

    python: tuple[int, int, int]
    executable: str
    system: str
    torch: str | None
    """Its version, as its wheel says: `2.9.0+cu128`; None: not installed."""
    devices: int
    """GPUs that jobs may use."""
    hidden: bool
    """CUDA_VISIBLE_DEVICES names them."""
    cores: float
    memory: int | None
    """That jobs can still get."""
    shm: int | None
    """Free in /dev/shm."""
    storage: str
    disk: int | None
    """Free where jobs store."""
    writable: bool
    files: int
    """That an agent may have open."""
    untried: bool
    """It has accelerators of a kind with which forks were never tried."""


def look(environ: Mapping[str, str] = os.environ) -> Machine:
    """This machine as a job would find it."""
    storage = os.path.expanduser(DEFAULT_STORAGE)
    there = storage
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    return Machine(
        python=sys.version_info[:3],
        executable=sys.executable,
        system=sys.platform,
        torch=_version("torch"),
        devices=len(gpus.visible(environ)),
        hidden=gpus.VISIBLE in environ,
        cores=cores.cores(),
        memory=memory.room(),
        shm=_free("/dev/shm"),
        storage=storage,
        disk=_free(there),
        writable=os.access(there, os.W_OK),
        files=open_files.within_reach(),
        untried=accelerators.untried(accelerators.names(), environ),
    )


def judge(seen: Machine) -> list[Finding]:
    """One finding a thing, in the order in which a job meets them."""
    return [
        _python(seen),
        _torch(seen),
        _gpus(seen),
        _cpu(seen),
        _memory_of(seen),
        _starts(seen),
        _shm(seen),
        _disk(seen),
        _files(seen),
    ]


def _python(seen: Machine) -> Finding:
    text = f"Python {'.'.join(map(str, seen.python))} at {seen.executable}: the ranks of `tj run` run with it"
    if not seen.system.startswith("linux"):
        return Finding("python", Level.FAIL, f"{text}, on {seen.system}", "jobs run on Linux; on a cluster: tj submit")
    return Finding("python", Level.OK, text)


def _torch(seen: Machine) -> Finding:
    if seen.torch is None:
        return Finding(
            "torch",
            Level.WARN,
            "torch is not installed in this Python",
            f"{seen.executable} -m pip install torch (or run `tj` from the environment that has it)",
        )
    if seen.devices and "+cpu" in seen.torch:
        return Finding(
            "torch",
            Level.FAIL,
            f"torch {seen.torch} is built for the CPU, and there {_are(seen.devices)}",
            "install a build for your GPUs: https://pytorch.org/get-started/locally",
        )
    return Finding("torch", Level.OK, f"torch {seen.torch}")


def _gpus(seen: Machine) -> Finding:
    if seen.devices:
        return Finding(
            "gpus", Level.OK, f"{wording.count(seen.devices, 'GPU')} for jobs: tj run SCRIPT --gpus {seen.devices}"
        )
    if seen.hidden:
        return Finding(
            "gpus",
            Level.WARN,
            f"none: {gpus.VISIBLE} hides all of them",
            f"unset {gpus.VISIBLE}, or name some: {gpus.VISIBLE}=0,1",
        )
    return Finding("gpus", Level.OK, "none (no NVIDIA driver answers): jobs train on the CPU")


def _cpu(seen: Machine) -> Finding:
    text = f"{seen.cores:g} for jobs; `tj run` divides them among the ranks (OMP_NUM_THREADS)"
    if seen.cores < 2:
        return Finding("cores", Level.WARN, text, "nothing for a try; two ranks take turns on one core")
    return Finding("cores", Level.OK, text)


def _memory_of(seen: Machine) -> Finding:
    if seen.memory is None:
        return Finding("memory", Level.OK, "cannot be told")
    text = f"{wording.size(seen.memory)} free; each rank is a process with its own copy of what it loads"
    if seen.memory < MEMORY_LEAST:
        return Finding(
            "memory", Level.WARN, text, "fewer --workers, or end what else runs (`ps aux --sort -rss | head`)"
        )
    return Finding("memory", Level.OK, text)


def _starts(seen: Machine) -> Finding:
    place = choice.Place(seen.untried, seen.memory)
    why = choice.why_not(contract.PREFORK_AUTO, [seen.executable, "train.py"], place)
    how = "ranks are forks of a process that has imported torch, so that a killed rank restarts faster"
    if why is not None:
        how = f"ranks start in new interpreters: {why}"
    return Finding("starts", Level.OK, how)


def _shm(seen: Machine) -> Finding:
    if seen.shm is None:
        return Finding("shm", Level.WARN, "there is no /dev/shm", "DataLoader(num_workers=0), or mount one")
    text = f"{wording.size(seen.shm)} free in /dev/shm, through which DataLoader workers hand batches over"
    if seen.shm < SHM_LEAST:
        return Finding("shm", Level.WARN, text, "docker run --shm-size=4g ..., or DataLoader(num_workers=0)")
    return Finding("shm", Level.OK, text)


def _disk(seen: Machine) -> Finding:
    if not seen.writable:
        return Finding(
            "disk", Level.FAIL, f"{seen.storage} cannot be written, where jobs store", "tj run --storage FOLDER"
        )
    text = f"{wording.size(seen.disk or 0)} free for {seen.storage}, where jobs store"
    if seen.disk is not None and seen.disk < DISK_LEAST:
        return Finding("disk", Level.WARN, text, "`tj list -o wide` shows sizes, `tj rm --older-than 30d` makes room")
    return Finding("disk", Level.OK, text)


def _files(seen: Machine) -> Finding:
    enough = open_files.workers_for(seen.files, 1)
    text = f"a process may open {seen.files}: enough for {enough} workers of one process each"
    if enough < FEW_WORKERS:
        return Finding(
            "files",
            Level.WARN,
            text,
            f"raise the hard limit: ulimit -Hn (as root), or fewer than {enough + 1} --workers",
        )
    return Finding("files", Level.OK, text)


def _are(count: int) -> str:
    return "is a GPU" if count == 1 else f"are {count} GPUs"


def _version(package: str) -> str | None:
    if util.find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of an unknown version"


def _free(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
