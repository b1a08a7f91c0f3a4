"""What a job on a cluster left and leaves, read from its storage where this machine sees it, else from its status.

Called by `cluster_run.py`: `result_of` for the end, `Reports` for callbacks on the way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.launch import job as jobs
from trainjob.launch.cluster import bucket
from trainjob.launch.handover import returned
from trainjob.launch.outcome import result as results
from trainjob.launch.outcome.reports import Follower, report_of
from trainjob.screen import clock, streams
from trainjob.session.checkpoint import Checkpoint
from trainjob_api import defaults

if TYPE_CHECKING:
    from trainjob.launch.handover.callbacks import Report
    from trainjob_api.v1alpha1 import CheckpointView, TrainJob

_BUCKET_S = 5.0
"""So long a bucket is tried that only the pods may have a way to."""


def result_of(job: TrainJob, error: Exception | None = None, return_key: str | None = None) -> results.Result:
    """From the job's storage where this machine sees it (a bucket, the same path on a shared file system), else from
    its status. `return_key`: without it what the function returned is not read.
    """
    folder, store = defaults.job_storage(job), own_folder(job)
    if folder is not None and store is not None:
        value = None if error else _returned(store, folder, return_key)
        reached = bucket.environ(job, os.environ)
        return results.read(folder, error=error, return_value=value, environ=reached, status=job.status)
    if folder is not None and error is None:
        _say(
            f"this machine does not see {folder}, where the metrics history and the function's return value are: "
            "Result has what the job's status says"
        )
    status = job.status
    latest = _checkpoint(status.checkpoint.latest)
    best = _checkpoint(status.checkpoint.best) or latest
    return results.Result(
        path=folder or "",
        metrics=dict(status.progress.metrics) or None,
        checkpoint=latest,
        best_checkpoints=[] if best is None else [(best, dict(best.metrics or {}))],
        error=error,
        attempts=clock.as_json(status),
    )


def own_folder(job: TrainJob) -> Store | None:
    """The job's folder, if it exists here and the newest run in it is this job's: a local folder of that path may be
    anything.
    """
    folder = defaults.job_storage(job)
    if folder is None:
        return None
    if not jobs.is_s3(folder) and not os.path.isdir(os.path.join(folder, "runs")):
        return None
    try:
        store = open_store(folder, _BUCKET_S, bucket.environ(job, os.environ))
        number = catalogue.latest_run(store)
        claim = None if number is None else catalogue.read_claim(store, number)
    except StoreError as error:
        _say(str(error))
        return None
    return store if claim is not None and claim.job_uid == job.metadata.uid else None


class Reports:
    """The reports that callbacks have not heard of yet."""

    def __init__(self) -> None:
        self._position = 0
        self._looked = False
        self._run: int | None = None
        self._follower: Follower | None = None
        self.store: Store | None = None
        """The job's folder, once it is known to be seen here."""

    def new(self, job: TrainJob) -> list[Report]:
        """Oldest first: every report where this machine sees the storage, also those that are done again after a
        failure; else the newest that the status shows (one in about 10 s), rank 0's alone.
        """
        progress, attempt = job.status.progress, job.status.attempt
        if not (progress.position or job.status.finished):
            return []
        if not self._looked:
            self._looked = True
            self._look(job)
        if self._follower is not None:
            number = 1 if attempt is None else attempt.number
            return self._follower.poll(self._run, number, final=job.status.finished)
        if progress.position <= self._position:
            return []
        self._position = progress.position
        reported = progress.last_report_time
        row = {
            "position": progress.position,
            "step": progress.step,
            "epoch": progress.epoch,
            "metrics": progress.metrics,
            "attempt": None if attempt is None else attempt.number,
            "run": None if attempt is None else attempt.run,
            "time": None if reported is None else reported.timestamp(),
        }
        return [report_of(row)]

    def _look(self, job: TrainJob) -> None:
        """Whether this machine sees the job's folder; its newest run is then this job's."""
        store = own_folder(job)
        try:
            self._run = None if store is None else catalogue.latest_run(store)
        except StoreError:
            return
        self._follower, self.store = (None, None) if store is None else (Follower(store), store)


def _returned(store: Store, folder: str, key: str | None) -> object:
    """What rank 0's function returned; None when it returned nothing, or nothing that can be read here. Nothing is
    unpickled that the job's own ranks did not seal.
    """
    try:
        body = store.read(layout.returned_key(catalogue.latest_run(store) or 0))
    except StoreError as error:
        _say(f"the return value cannot be read: {error}")
        return None
    if body is None:
        return None
    mine = None if key is None else returned.opened(key, body)
    if mine is None:
        why = "this launcher has no key for it" if key is None else "it does not come from this job's ranks"
        _say(f"the return value in {folder} is not read: {why}")
        return None
    import cloudpickle

    try:
        return cloudpickle.loads(mine)
    except Exception as error:  # whatever the import of the user's modules raises
        _say(f"the return value in {folder} cannot be read here ({type(error).__name__}: {error})")
        return None


def _checkpoint(view: CheckpointView | None) -> Checkpoint | None:
    if view is None or view.uri is None:
        return None
    return Checkpoint.from_restored({"path": view.uri, "uri": view.uri, "id": view.id, "step": view.step})


def _say(text: str) -> None:
    streams.say(f"tj  | {text}")
