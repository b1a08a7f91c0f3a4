"""Whether a cluster can be made on this machine at all: asked before anything is started, so that no failing step is
ever taken for an answer.

Called by `__main__.py` (`check`, `up`, `test`). Only what no installation mends counts: rights that this machine does
not give. A missing package, a build that fails, a cluster that does not come up are failures, and are told as such.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster import engine as engines

EXIT_CANNOT = 77
"""No cluster can be made here; distinct from every failure."""

_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = [
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--ipc",
    "--uts",
    "--fork",
    "mount",
    "-t",
    "tmpfs",
    "trainjob-preflight",
    "/mnt",
]


def obstacle() -> str | None:
    """Why there can be no cluster here, in one sentence; None: it can be tried. A Docker engine that answers needs
    no rights of ours.
    """
    return None if engines.find() is not None else missing_right()


def missing_right() -> str | None:
    """The first right that an engine of our own would lack."""
    if sys.platform != "linux":
        return f"no Docker engine answers, and an own one needs Linux, not {sys.platform}"
    if os.geteuid() != 0:
        return "no Docker engine answers, and an own one needs root"
    return _no_namespaces() or _no_cgroups()


def _no_namespaces() -> str | None:
    """Namespaces and a mount inside them are made for a moment, and go with the process."""
    if shutil.which("unshare") is None:
        return None
    try:
        done = subprocess.run(_NAMESPACES, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return (
        None
        if done.returncode == 0
        else f"this machine gives no right to make network and mount namespaces ({done.stderr.strip()})"
    )


def _no_cgroups() -> str | None:
    if engines.has_cgroup_v2():
        hierarchies = [_CGROUPS]
    else:
        hierarchies = [_CGROUPS / name for name in ("memory", "cpu", "pids") if (_CGROUPS / name).is_dir()]
    if not hierarchies:
        return f"no cgroup hierarchy is mounted at {_CGROUPS}"
    for hierarchy in hierarchies:
        group = hierarchy / f"trainjob-preflight-{os.getpid()}"
        try:
            group.mkdir()
            group.rmdir()
        except OSError as error:
            return f"this machine gives no right to make control groups ({error})"
    return None
