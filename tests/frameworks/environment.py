"""Prints the folder with frameworks, for PYTHONPATH; installs them first where they are missing.

`python tests/frameworks/environment.py requirements.txt`: run by `make test-frameworks` with .venv's Python. The folder is kept between
clones, by what decides its content.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def folder(requirements: Path) -> Path:
    """Where they are, or will be."""
    content = requirements.read_bytes() + sys.version.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trainjob" / f"frameworks-{hashlib.sha256(content).hexdigest()[:12]}"


def install(requirements: Path, target: Path) -> None:
    """Whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.mkdtemp(dir=target.parent, prefix=".frameworks-")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "--no-deps", "--target", made, "--requirement", str(requirements)], check=True)
        os.rename(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    wanted = Path(__file__).with_name(sys.argv[1])
    if not folder(wanted).is_dir():
        print(f"frameworks: installing {wanted.name} (once)", file=sys.stderr)
        install(wanted, folder(wanted))
    print(folder(wanted))
