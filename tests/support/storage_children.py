"""The storage child of an agent, as others see it."""

from __future__ import annotations

import os
from pathlib import Path

from support.agent_rig import Rig


def child_of(rig: Rig, slot: int) -> int:
    """The pid of an agent's storage child."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except (OSError, ValueError):
                continue
            if parent == rig.agents[slot].process.pid and b"trainjob.checkpoint.storage_child.child" in command:
                return int(name)
    raise AssertionError("no storage child")
