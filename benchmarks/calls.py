"""What `report()` and `log()` cost the training loop, measured inside the ranks; gloo's barrier is measured beside
report().
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.jobs import PATIENCE_S, WORKLOADS, trainjob


def measure(rounds: int) -> list[Figure]:
    """One job a round; every sample is one call (log: the mean of a thousand)."""
    samples: dict[str, list[float]] = {"report_ms": [], "barrier_ms": [], "gloo_ms": [], "log_us": []}
    for _ in range(rounds):
        for name, values in _one_job().items():
            samples[name] += values
    return [
        Figure("report_median", "ms", samples["report_ms"]),
        Figure("report_p99", "ms", samples["report_ms"], quantile=0.99),
        Figure("log", "us", samples["log_us"]),
        Figure("barrier_vs_gloo", "ms", samples["barrier_ms"], samples["gloo_ms"], "torch.distributed.barrier on gloo"),
    ]


def _one_job() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="tj-bench-") as name:
        folder = Path(name)
        out = folder / "samples.json"
        command = trainjob(WORKLOADS / "calls.py", str(out), folder=folder)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if done.returncode != 0:
            raise RuntimeError(f"calls.py ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        content: dict[str, list[float]] = json.loads(out.read_text())
        return content
