"""Where the cluster tool keeps its things, and the lock that lets one caller at a time change them.

Everything of a running cluster is under `cluster_folder()` and `run_folder()` and goes with `cluster down`; what is
dear to build is under `image_folder()` (beside the binaries of `binaries.py`), keyed by content, and stays.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.binaries import cache_folder
from cluster.process import ToolError

CLUSTER = "trainjob"
"""The cluster's name for kind; its nodes are trainjob-control-plane, trainjob-worker and trainjob-worker2."""
WORKERS = 2


def cluster_folder() -> Path:
    """State of the running cluster."""
    return cache_folder() / "cluster"


def image_folder() -> Path:
    """Images and root file systems that were built once."""
    return cache_folder() / "images"


def log_folder() -> Path:
    """Logs of the engine and of each step; gone after `down`."""
    return cluster_folder() / "logs"


def run_folder() -> Path:
    """Sockets: their paths must be short."""
    return Path("/run/trainjob-cluster")


def kubeconfig() -> Path:
    """What to put into KUBECONFIG."""
    return cluster_folder() / "kubeconfig"


def shared_folder() -> Path:
    """Mounted at /shared into every node: the checkpoint storage of end-to-end jobs."""
    return cluster_folder() / "shared"


@contextmanager
def one_caller(timeout_s: float = 1800) -> Iterator[None]:
    """Only one `python -m cluster` changes the cluster at a time. Raises ToolError."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    path = cache_folder() / "cluster.lock"
    with open(path, "a+") as file:
        deadline = time.monotonic() + timeout_s
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    file.seek(0)
                    print(
                        f"cluster: waiting for another caller ({file.read().strip() or 'unknown'})",
                        file=sys.stderr,
                        flush=True,
                    )
                    told = True
                if time.monotonic() > deadline:
                    raise ToolError(
                        f"another caller has held {path} for {timeout_s:.0f} s: end it, or wait for it"
                    ) from None
                time.sleep(0.2)
        file.truncate(0)
        file.write(f"pid {os.getpid()}: {' '.join(sys.argv[1:])}")
        file.flush()
        yield
