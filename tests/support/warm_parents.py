"""Warm parents as others see them."""

from __future__ import annotations

import os
from pathlib import Path

from support.agent_rig import Rig
from support.patience import HANG_S
from support.tuned_agent import entry
from trainjob_api import contract

PATIENT = entry(
    warm__starter__PATIENCE_S=HANG_S,
    warm__gates__GATE_S=HANG_S,
    warm__stores__STORE_S=HANG_S,
    processes__memory__ROOT=os.devnull,
)
"""Agents whose ranks are forks, with a store beside them, however long a busy machine takes to import torch, and however
little of its memory is free: nothing tells them.
"""


def parents_of(rig: Rig, slot: int = 0) -> list[int]:
    """The warm parent of an agent, the forks of it that wait, and those that serve a store."""
    mark = f"{contract.ENV_POD_UID}={rig.pod_uid(slot)}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_parent(pid, mark)]


def parent_of(rig: Rig, slot: int = 0) -> int:
    """Of these the warm parent itself: the one that was started first. Numbers of processes begin anew at times."""
    return min(parents_of(rig, slot), key=_born)


def children_of(rig: Rig, slot: int = 0) -> list[int]:
    """Of these, those that the agent has by now: not what is between a parent and a fork of it for a moment."""
    agent = str(rig.agents[slot].process.pid).encode()
    return [pid for pid in parents_of(rig, slot) if _parent_of(pid) == agent]


def _born(pid: int) -> float:
    """When, by the kernel's clock; a fork that has ended meanwhile is younger than its parent."""
    try:
        return int(_stat(pid)[19])
    except OSError:
        return float("inf")


def _parent_of(pid: int) -> bytes:
    try:
        return _stat(pid)[1]
    except OSError:
        return b""


def _stat(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _is_parent(pid: int, mark: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return contract.WARM.encode() in words and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
