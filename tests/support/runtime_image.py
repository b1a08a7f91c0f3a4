"""What the runtime image holds, put together as its Dockerfile does, and Pythons to run it with."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.binaries import cache_folder
from support.agent_rig import ROOT
from trainjob_api import contract

RUNTIME = ROOT / "worker-image" / "runtime"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


def image_content(folder: Path) -> Path:
    """/runtime as the image has it, but for the packages."""
    made = folder / "runtime"
    (made / "content" / "lib").mkdir(parents=True)
    shutil.copy(RUNTIME / "install", made)
    for name in ("start", "agent.py"):
        shutil.copy(RUNTIME / name, made / "content")
    for package in (ROOT / "operator" / "trainjob_api", ROOT / "worker-image" / "trainjob"):
        shutil.copytree(package, made / "content" / "lib" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", made], check=True)  # whatever the umask of this checkout
    return made


@functools.cache
def packages() -> Path:
    """The image's packages, fetched once and kept outside the tree; skips where no package index can be reached."""
    files = [RUNTIME / "fetch-packages", RUNTIME / "packages.txt"]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]
    target = cache_folder() / f"runtime-packages-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            run = subprocess.run(
                [files[0], part, "--retries", "1"], env=env, capture_output=True, text=True, timeout=300, check=False
            )
            if run.returncode != 0:
                pytest.skip(f"the runtime image's packages cannot be fetched: {run.stderr.strip()[-300:]}")
            part.rename(target)
    return target


def with_packages(folder: Path) -> Path:
    """The pod's runtime folder with all that the image brings."""
    content = image_content(folder) / "content"
    (content / contract.RUNTIME_PACKAGES).symlink_to(packages())
    return content


def python_of(version: str) -> str:
    """A Python of this version, from pyenv, the path or this very one; skips."""
    found = pythons(version)
    if not found:
        pytest.skip(f"no Python {version} under pyenv's versions or on the PATH")
    return found[0]


def pythons(version: str) -> list[str]:
    """Paths of Pythons of this version."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [
        *map(str, sorted(versions.glob(f"{version}.*/bin/python{version}"))),
        *filter(None, [shutil.which(f"python{version}")]),
    ]
