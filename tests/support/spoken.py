"""A Python program of a test, run to its end: what it said on both streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def said(words: list[str], here: Path, *, limit_s: float, **environment: str) -> str:
    """`python *words` in that folder, which is its home too. Fails with the output where it ends with another exit code
    than 0. `environment`: beside this process's own.
    """
    done = subprocess.run(
        [sys.executable, *words],
        cwd=here,
        env={**os.environ, "HOME": str(here), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
