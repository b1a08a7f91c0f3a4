"""`trainjob.errors`: the errors that user code may want to catch."""

from __future__ import annotations

from trainjob.session.errors import (
    AgentLostError,
    BarrierMismatchError,
    BarrierTimeoutError,
    CheckpointDamagedError,
    CheckpointError,
    CollectiveError,
    NotInWorkerError,
    RankGoneError,
    StorageError,
    TrainJobError,
)

__all__ = [
    "AgentLostError",
    "BarrierMismatchError",
    "BarrierTimeoutError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CollectiveError",
    "NotInWorkerError",
    "RankGoneError",
    "StorageError",
    "TrainJobError",
]
