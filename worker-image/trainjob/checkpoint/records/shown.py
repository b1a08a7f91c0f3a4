"""What of a checkpoint and its metrics is shown to people: in the job's status, in its progress.

Used by rank 0's agent and by the storage child, which both report checkpoints. Pure.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from trainjob.checkpoint.records.identity import CheckpointId
from trainjob_api import contract


def metrics(reported: Mapping[str, Any]) -> Dict[str, float]:
    """Numbers that JSON knows, nested ones under dotted names, and no more than status has room for. Of two of one name
    the later holds: a number from before does not stand in for one that is NaN now.
    """
    numbers = (
        (name, value)
        for name, value in dict(_flat(reported, "")).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    )
    return dict(itertools.islice(numbers, contract.METRICS_LIMIT))


def checkpoint(
    id_: CheckpointId,
    uri: Optional[str],
    *,
    step: Optional[int],
    time: float,
    total_bytes: int,
    reported: Mapping[str, Any],
) -> contract.CheckpointReport:
    """A checkpoint as agents report it. `reported`: the metrics of its report()."""
    return {
        "id": str(id_),
        "step": step,
        "uri": uri,
        "time": time,
        "bytes": total_bytes,
        "metrics": metrics(reported),
    }


def _flat(found: Mapping[str, Any], prefix: str) -> Iterator[Tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
