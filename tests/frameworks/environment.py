"""Prints the folder with the frameworks, for PYTHONPATH; installs them first where they are missing.

`python tests/frameworks/environment.py`: run by `make test-frameworks` with .venv's Python. The folder is kept between
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

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def folder() -> Path:
    """Where they are, or will be."""
    content = REQUIREMENTS.read_bytes() + sys.version.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trainjob" / f"frameworks-{hashlib.sha256(content).hexdigest()[:12]}"


def install(target: Path) -> None:
    """Whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.mkdtemp(dir=target.parent, prefix=".frameworks-")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "--no-deps", "--target", made, "--requirement", str(REQUIREMENTS)], check=True)
        os.rename(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    if not folder().is_dir():
        print("frameworks: installing (once)", file=sys.stderr)
        install(folder())
    print(folder())
