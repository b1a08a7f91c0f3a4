"""get_all_reported_checkpoints(): what the run has saved so far, as storage has it. Exported lazily by `trainjob`.

The agents answer from the same reading of the job's folder as Result and the command line. No collective: any rank may
ask, alone.
"""

from __future__ import annotations

import math
import time
from enum import Enum
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from trainjob import session
from trainjob.session import calls
from trainjob.session.arguments import told
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.link import link
from trainjob_api import nonfinite

LOOK_AGAIN_S = (0.25, 5.0)
"""After what time a validation is looked for again: at first, and at last."""


class ReportedCheckpointStatus(str, Enum):
    """What is known of a checkpoint in the list."""

    COMMITTED = "COMMITTED"
    """It is on storage and whole; nobody asked for its validation."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    """On storage; its validation is not over."""
    VALIDATED = "VALIDATED"
    """Its metrics have what the validation measured."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    """Its validation took longer than it was given."""
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """Its validation raised."""


class CheckpointConsistencyMode(Enum):
    """What get_all_reported_checkpoints() waits for."""

    COMMITTED = "COMMITTED"
    """That what was reported is on storage."""
    VALIDATED = "VALIDATED"
    """And that the validations that were asked for are over."""


class ReportedCheckpoint(NamedTuple):
    """A checkpoint and the metrics of its report (rank 0's).

    ```python
    for reported in trainjob.get_all_reported_checkpoints():
        print(reported.checkpoint.id, reported.metrics, reported.status.value)
    ```
    """

    checkpoint: Checkpoint
    """Its handle: files are read when they are asked for."""
    metrics: Dict[str, Any]
    """Of the report() that it came with."""
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED
    """How its validation stands; all that are listed are committed."""


@told
def get_all_reported_checkpoints(
    consistency_mode: Any = None, timeout_s: Optional[float] = None
) -> List[ReportedCheckpoint]:
    """All checkpoints of this run that are on storage and whole, oldest first; those that retention removed are not
    among them.

    Waits until what was reported before is stored (or given up), no longer than `timeout_s`; then whatever is there is
    returned. A job without storage has its newest one alone. `consistency_mode`: absent or VALIDATED, validations that
    were asked for are waited for too, where this attempt has a `validation_config` and so goes on with them; COMMITTED:
    not.

    Raises StorageError when storage cannot be read.

    ```python
    for reported in trainjob.get_all_reported_checkpoints():
        print(reported.checkpoint.id, reported.metrics)
    ```
    """
    if timeout_s is not None and not timeout_s >= 0:
        raise ValueError(f"timeout_s={timeout_s!r} must be a number of seconds from 0 (None: wait without a limit)")
    line = link()
    out: List[ReportedCheckpoint] = []
    limit = None if timeout_s == math.inf else timeout_s
    deadline = None if limit is None else time.monotonic() + limit
    rows = line.reported(limit)
    mode = str(getattr(consistency_mode, "name", consistency_mode))
    waits = session.validate is not None and mode != CheckpointConsistencyMode.COMMITTED.name
    pause = LOOK_AGAIN_S[0]
    while waits and any(_status(row) is ReportedCheckpointStatus.PENDING_VALIDATION for row in rows):
        left = math.inf if deadline is None else deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause = min(2 * pause, LOOK_AGAIN_S[1])
        rows = line.reported(0)
    for row in rows:
        metrics = nonfinite.numbers(row["metrics"])
        if row.get("path"):
            out.append(ReportedCheckpoint(Checkpoint.from_restored(row), metrics, _status(row)))
            continue
        found = line.restore(str(row["id"]))
        if found is not None:
            out.append(ReportedCheckpoint(calls.restored(found), metrics))
    return out


def _status(row: Mapping[str, Any]) -> ReportedCheckpointStatus:
    return ReportedCheckpointStatus(row.get("validation") or ReportedCheckpointStatus.COMMITTED.value)
