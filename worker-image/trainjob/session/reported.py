"""get_all_reported_checkpoints(): what the run has saved so far, as storage has it. Exported lazily by `trainjob`.

The agents answer from the same reading of the job's folder as Result and the command line. No collective: any rank may
ask, alone.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Dict, List, NamedTuple, Optional

from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.link import link
from trainjob_api import nonfinite


class ReportedCheckpointStatus(str, Enum):
    """What is known of a checkpoint in the list."""

    COMMITTED = "COMMITTED"
    """It is on storage and whole."""


class ReportedCheckpoint(NamedTuple):
    """A checkpoint and the metrics of its report (rank 0's)."""

    checkpoint: Checkpoint
    """Its handle: files are read when they are asked for."""
    metrics: Dict[str, Any]
    """Of the report() that it came with."""
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED
    """All that are listed are committed."""


def get_all_reported_checkpoints(
    consistency_mode: Any = None, timeout_s: Optional[float] = None
) -> List[ReportedCheckpoint]:
    """All checkpoints of this run that are on storage and whole, oldest first; those that retention removed are not
    among them.

    Waits until what was reported before is stored (or given up), no longer than `timeout_s`; then whatever is there is
    returned. A job without storage has its newest one alone. `consistency_mode` is accepted for Ray Train's sake:
    everything in the list is committed.

    Raises StorageError when storage cannot be read.
    """
    if timeout_s is not None and not timeout_s >= 0:
        raise ValueError(f"timeout_s={timeout_s!r} must be a number of seconds from 0 (None: wait without a limit)")
    line = link()
    out: List[ReportedCheckpoint] = []
    for row in line.reported(None if timeout_s == math.inf else timeout_s):
        metrics = nonfinite.numbers(row["metrics"])
        if row.get("path"):
            out.append(ReportedCheckpoint(Checkpoint.from_restored(row), metrics))
            continue
        found = line.restore(str(row["id"]))
        if found is not None:
            out.append(ReportedCheckpoint(calls.restored(found), metrics))
    return out
