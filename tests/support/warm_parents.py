"""Warm parents as others see them."""

from __future__ import annotations

import os
from pathlib import Path

from support.agent_rig import Rig
from trainjob_api import contract


def parents_of(rig: Rig, slot: int = 0) -> list[int]:
    """The warm parent of an agent, the forks of it that wait, and those that serve a store."""
    mark = f"{contract.ENV_POD_UID}={rig.pod_uid(slot)}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_parent(pid, mark)]


def _is_parent(pid: int, mark: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return contract.WARM.encode() in words and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
