"""How long `tj --help` takes: the price of every command before it does anything."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.figures import Figure

RUNS = 5


def measure(rounds: int) -> list[Figure]:
    """Wall time of the whole process."""
    return [Figure("tj_help", "s", [_once() for _ in range(rounds * RUNS)])]


def _once() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trainjob.cli", "--help"], stdout=subprocess.DEVNULL, check=True, timeout=30)
    return time.perf_counter() - begun
