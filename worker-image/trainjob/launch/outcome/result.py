"""`Result`: what a run left on storage, read from the job's folder; the same for a run that has just ended and for an
old one.

`trainer.py` returns it; `Result.from_path` opens any job's folder. Only reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.publishing.retention import Policy, Scored
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.job import storage_root
from trainjob.session.checkpoint import Checkpoint

if TYPE_CHECKING:
    import pandas

    from trainjob.checkpoint.records.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics and checkpoints of one run."""

    path: str
    """The job's folder on storage."""
    metrics: dict[str, Any] | None = None
    """Of rank 0's last report; None when there was none."""
    checkpoint: Checkpoint | None = None
    """The latest good one."""
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    """All kept ones with the metrics of their reports, in the order in which they were taken."""
    error: Exception | None = None
    """Why the run failed, where the launcher that saw it is the one that asks."""
    return_value: Any = None
    """What rank 0's training function returned, from `fit()`; None for results read from a path."""
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The metrics history: each report once, those that were overtaken by a resumed attempt left out."""

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Result:
        """The newest run in a job's folder. Raises LaunchError when there is none."""
        folder = storage_root(path)
        try:
            found = open_store(folder).names("runs")
        except StoreError as trouble:
            raise LaunchError(f"the results in {folder} cannot be read: {trouble}") from trouble
        if not found:
            raise LaunchError(
                f"{folder} is no folder of a TrainJob (it has no runs/): give <storage path>/<namespace>/<name>"
            )
        return read(folder)

    @cached_property
    def metrics_dataframe(self) -> pandas.DataFrame | None:
        """One row per report, with its position, step, epoch, time and checkpoint beside the metrics; needs pandas.
        None without reports.
        """
        if not self.rows:
            return None
        try:
            import pandas
        except ImportError as error:
            raise LaunchError(
                "Result.metrics_dataframe needs pandas: pip install pandas (Result.rows has the same without it)"
            ) from error
        names = ("position", "step", "epoch", "time", "checkpoint", "attempt")
        return pandas.DataFrame(
            [{**{name: row.get(name) for name in names}, **inventory.flat(row["metrics"])} for row in self.rows]
        )

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of the kept checkpoints the one with the highest ("max") or lowest ("min") value, of equal ones the
        newest; None when none has the metric.
        """
        if mode not in ("max", "min"):
            raise ConfigError("mode", mode, "give 'max' or 'min'")
        by_id = {
            CheckpointId.parse(str(checkpoint.id)): (checkpoint, metrics)
            for checkpoint, metrics in self.best_checkpoints
        }
        best = inventory.best_id(
            [Scored(id_, metrics) for id_, (_, metrics) in by_id.items()], Policy(None, metric, mode)
        )
        return None if best is None else by_id[best][0]


def read(
    folder: str, *, error: Exception | None = None, return_value: Any = None, environ: Mapping[str, str] | None = None
) -> Result:
    """The newest run in the job's folder. `environ`: by which a bucket is reached, instead of this process's
    environment.
    """
    try:
        store = open_store(folder, environ=environ)
        run = catalogue.latest_run(store)
        best = [
            (handle(folder, manifest), dict(manifest.note.metrics)) for manifest in catalogue.list_checkpoints(store)
        ]
        rows = [] if run is None else [row for row in catalogue.history(store, run) if row.get("kind") == "report"]
        latest = best[-1][0] if best else _origin(store, run, environ)
    except StoreError as trouble:
        raise LaunchError(f"the results in {folder} cannot be read: {trouble}") from trouble
    return Result(
        path=folder,
        metrics=dict(rows[-1]["metrics"]) if rows else (best[-1][1] if best else None),
        checkpoint=latest,
        best_checkpoints=best,
        error=error,
        return_value=return_value,
        rows=rows,
    )


def _origin(store: Store, run: int | None, environ: Mapping[str, str] | None) -> Checkpoint | None:
    """What a run without checkpoints of its own resumed from."""
    found = None if run is None else inventory.origin(store, run, environ)
    return None if found is None else _handle(found.uri, found.manifest)


def handle(folder: str, manifest: Manifest) -> Checkpoint:
    """The public handle of a committed checkpoint."""
    return _handle(os.path.join(folder, "checkpoints", str(manifest.id)), manifest)


def _handle(path: str, manifest: Manifest) -> Checkpoint:
    note = manifest.note
    found = {
        "path": path,
        "uri": path,
        "id": str(note.id),
        "step": note.step,
        "epoch": note.epoch,
        "metrics": dict(note.metrics),
        "world_size": note.world_size,
    }
    return Checkpoint.from_restored(found)
