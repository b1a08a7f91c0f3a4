"""How the calls that all ranks make are named, and what is asked where rank 0 alone makes one. Pure."""

from __future__ import annotations

from typing import Sequence

from trainjob_api import contract

CALL_NAMES = {
    contract.KIND_REPORT: "report()",
    contract.KIND_BARRIER: "barrier()",
    contract.KIND_BROADCAST: "broadcast_from_rank_zero()",
}

ALL_CALL_IT = "is called by all ranks"
ASKED = "does it stand under `if rank == 0:`, or has rank 0 fewer batches?"


def by_rank_0_alone(call: str, waiting: Sequence[int]) -> str:
    """The likely cause where rank 0 alone waits in this call; empty for other ranks. Asked where others are missing."""
    return f"{call} {ALL_CALL_IT}: {ASKED}" if tuple(waiting) == (0,) else ""
