"""The errors that the session raises in user code. Each carries the agent's own words; none is raised for control flow.

Imported by everything in `trainjob.session` and by users (`trainjob.errors`). Must not import anything of ours but the
contract.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Type

from trainjob_api import contract


class TrainJobError(RuntimeError):
    """Base of everything that TrainJob raises in user code."""


class NotInWorkerError(TrainJobError):
    """A call that needs an agent was made in a process that no agent started."""


class AgentLostError(TrainJobError):
    """The agent of this pod closed the connection: it was stopped, or the whole pod is going away."""


class CollectiveError(TrainJobError):
    """A call that all ranks make together could not be completed; `ranks` are the ones it failed for."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks: List[int] = list(ranks)


class RankGoneError(CollectiveError):
    """A rank that this call needs has ended."""


class BarrierTimeoutError(CollectiveError):
    """Ranks did not arrive within the time-out."""


class BarrierMismatchError(CollectiveError):
    """Ranks called different things (one a report(), another a barrier()), or the same ones in another order."""


class CheckpointError(CollectiveError):
    """A checkpoint cannot be taken over, read or found."""


class CheckpointDamagedError(CheckpointError):
    """A stored checkpoint failed its check; the attempt ends uncounted and the next one resumes from the one before."""


class StagingFullError(CheckpointError):
    """A worker has no room to stage the checkpoint; nobody's was taken over."""


class StorageError(CheckpointError):
    """The job's storage cannot be used."""


_BY_REASON = {
    contract.FAIL_RANK_GONE: RankGoneError,
    contract.FAIL_TIMEOUT: BarrierTimeoutError,
    contract.FAIL_MISMATCH: BarrierMismatchError,
    contract.FAIL_STAGING: CheckpointError,
    contract.FAIL_FULL: StagingFullError,
    contract.FAIL_DAMAGED: CheckpointDamagedError,
    contract.FAIL_STORAGE: StorageError,
}


def from_agent(reason: str, message: str, ranks: Optional[Sequence[int]] = None) -> CollectiveError:
    """The exception for a `failed` reply; an unknown reason of a newer agent becomes a plain CollectiveError."""
    kind: Type[CollectiveError] = _BY_REASON.get(reason, CollectiveError)
    return kind(message or f"the agent refused the call ({reason})", ranks or ())
