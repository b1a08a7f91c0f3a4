"""Measures the agent: start to first sync, memory, report() through two agents. `python
tests/support/agent_figures.py`, on a quiet machine.

agent_start_ms 70
agent_rss_mb 25
report_ms 0.31
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    *(str(Path(__file__).resolve().parents[2] / root) for root in ("operator", "worker-image")),
]

from support.agent_rig import Rig  # noqa: E402

STARTS = 7
CALLS = """
import time, trainjob
trainjob.get_context()
for _ in range(300):
    trainjob.report({"loss": 0.5}, step=1)
taken = []
for _ in range(3000):
    begun = time.perf_counter()
    trainjob.report({"loss": 0.5}, step=1)
    taken.append((time.perf_counter() - begun) * 1000)
taken.sort()
print("median", taken[len(taken) // 2], "p99", taken[len(taken) * 99 // 100], flush=True)
time.sleep(600)
"""


def starts(folder: Path) -> list[float]:
    """Milliseconds from fork to the first sync."""
    taken = []
    with Rig(folder, script="", agents=0) as rig:
        for slot in range(STARTS):
            begun = time.perf_counter()
            rig.start(slot)
            with rig.coordinator.changed:
                rig.coordinator.changed.wait_for(lambda slot=slot: slot in rig.coordinator.reports, 30)
            taken.append((time.perf_counter() - begun) * 1000)
            rig.agents[slot].process.kill()
    return taken


def calls(folder: Path) -> tuple[list[float], list[float]]:
    """Median report() of each rank in milliseconds, and each agent's memory in MB afterwards."""
    with Rig(folder, script=CALLS, storage=folder / "store") as rig:
        rig.run(1)
        for slot in (0, 1):
            rig.wait_text(slot, "median", 120)
        found = [float(re.findall(r"median (\S+)", rig.text(slot))[0]) for slot in (0, 1)]
        status = [Path(f"/proc/{a.process.pid}/status").read_text() for a in rig.agents.values()]
        return found, [int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024 for text in status]


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"agent_start_ms {median(starts(Path(folder) / 'starts')):.0f}")
        found, memory = calls(Path(folder) / "calls")
        print(f"agent_rss_mb {max(memory):.1f}")
        print(f"report_ms {max(found):.3f}")


if __name__ == "__main__":
    main()
