"""A real Python of the oldest version that worker containers may have."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from support.patience import HANG_S

VERSION = (3, 9)


def oldest_python() -> str:
    """Its path, from TRAINJOB_TEST_PYTHON39, pyenv's versions or the PATH; skips the test where there is none."""
    found = _found()
    if found is None:
        pytest.skip("no Python 3.9 under pyenv's versions or on the PATH: `pyenv install 3.9` makes this test run")
    return found


@cache
def _found() -> str | None:
    major, minor = VERSION
    name = f"python{major}.{minor}"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    named = [
        os.environ.get("TRAINJOB_TEST_PYTHON39"),
        *map(str, sorted(versions.glob(f"{major}.{minor}.*/bin/{name}"))),
    ]
    for python in filter(None, [*named, shutil.which(name)]):
        ask = [python, "-c", "import sys; print(sys.version_info[:2])"]
        probe = subprocess.run(ask, capture_output=True, text=True, timeout=HANG_S, check=False)
        if probe.stdout.strip() == str(VERSION):
            return python
    return None
