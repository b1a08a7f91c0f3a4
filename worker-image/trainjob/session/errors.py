"""The errors that the session raises in user code. Each carries the agent's own words; none is raised for control flow.

Imported by everything in `trainjob.session` and by users (`trainjob.errors`). Must not import anything of ours but the
contract.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Type

from trainjob_api import contract


class TrainJobError(RuntimeError):
    """Base of everything that TrainJob raises in user code.

    ```python
    try:
        trainjob.report(metrics, step=step)
    except trainjob.TrainJobError as error:
        print("not reported:", error)
        raise
    ```
    """


class NotInWorkerError(TrainJobError):
    """A call that needs an agent was made in a process that no agent started.

    ```python
    try:
        rank = trainjob.get_context().get_world_rank()
    except trainjob.NotInWorkerError:  # a notebook, a test of this function
        rank = 0
    ```
    """


class AgentLostError(TrainJobError):
    """The agent of this pod closed the connection: it was stopped, or the whole pod is going away.

    ```python
    try:
        trainjob.report(metrics, step=step)
    except trainjob.AgentLostError:  # this process is about to be ended: nothing can be saved any more
        raise
    ```
    """


class CollectiveError(TrainJobError):
    """A call that all ranks make together could not be completed; `ranks` are the ones it failed for.

    ```python
    try:
        trainjob.barrier()
    except trainjob.CollectiveError as error:
        print("failed for ranks", error.ranks, error)
        raise
    ```
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks: List[int] = list(ranks)


class RankGoneError(CollectiveError):
    """A rank that this call needs has ended.

    ```python
    try:
        trainjob.report(metrics, step=step)
    except trainjob.RankGoneError as error:  # do not go on without it: the job starts all ranks again
        print("ended before this report():", error.ranks)
        raise
    ```
    """


class BarrierTimeoutError(CollectiveError):
    """Ranks did not arrive within the time-out.

    ```python
    try:
        trainjob.barrier(timeout_s=600)
    except trainjob.BarrierTimeoutError as error:
        print("not there after ten minutes:", error.ranks)
        raise
    ```
    """


class BarrierMismatchError(CollectiveError):
    """Ranks called different things (one a report(), another a barrier()), or the same ones in another order.

    ```python
    # raises it on several ranks: rank 0 makes a call that the others do not make
    if trainjob.get_context().get_world_rank() == 0:
        trainjob.report(metrics)
    trainjob.barrier()
    ```
    """


class CheckpointError(CollectiveError):
    """A checkpoint cannot be taken over, read or found.

    ```python
    try:
        state = Checkpoint("./store/default/digits/checkpoints/1-1-7").to_dict()
    except trainjob.CheckpointError as error:
        print(error)  # says what is not there, and what is
    ```
    """


class CheckpointDamagedError(CheckpointError):
    """A stored checkpoint failed its check; the attempt ends uncounted and the next one resumes from the one before.

    ```python
    checkpoint = trainjob.get_checkpoint()
    if checkpoint:
        try:
            state = checkpoint.to_dict()
        except trainjob.CheckpointDamagedError:
            raise  # let it end the rank: the next attempt gets the checkpoint before
    ```
    """


class StagingFullError(CheckpointError):
    """A worker has no room to stage the checkpoint; nobody's was taken over.

    ```python
    try:
        trainjob.report(metrics, checkpoint=Checkpoint.from_dict(state), step=step)
    except trainjob.StagingFullError as error:  # all ranks get it: they may train on without this checkpoint
        print("no room on the workers of ranks", error.ranks)
        trainjob.report(metrics, step=step)
    ```
    """


class StorageError(CheckpointError):
    """The job's storage cannot be used.

    ```python
    try:
        trainjob.report(metrics, checkpoint=Checkpoint.from_dict(state), checkpoint_upload_mode="SYNC")
    except trainjob.StorageError as error:  # the bucket or the volume, not your code
        print(error)
        raise
    ```
    """


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
