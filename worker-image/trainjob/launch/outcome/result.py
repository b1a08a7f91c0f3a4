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
from trainjob.checkpoint.publishing import retention
from trainjob.checkpoint.publishing.retention import Policy, Scored
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.job import folders_of
from trainjob.screen import clock
from trainjob.session import filesystems
from trainjob.session.checkpoint import Checkpoint

if TYPE_CHECKING:
    import pandas

    from trainjob.checkpoint.records.manifest import Manifest
    from trainjob_api.v1alpha1 import TrainJobStatus


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics and checkpoints of one run.

    ```python
    print(result.metrics, result.checkpoint)  # of what fit() returned
    for row in result.rows:
        print(row["position"], row["metrics"]["loss"])
    again = trainjob.Result.from_path(result.path)  # later, in another program
    ```
    """

    path: str
    """The job's folder on storage."""
    metrics: dict[str, Any] | None = None
    """Those of `checkpoint`'s report, as in Ray Train; without checkpoints those of the last report, and None when
    there was none. `rows` has every report's.
    """
    checkpoint: Checkpoint | None = None
    """The latest good one."""
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    """The `num_to_keep` best ones with the metrics of their reports, the best one last; without a score attribute in
    the order in which they were taken. `checkpoint` is kept too, but listed only when it is one of them. Where the run
    goes on from an earlier one of its name, that one's are among them, up to the checkpoint from which it goes on.
    """
    error: Exception | None = None
    """Why the run failed, where the launcher that saw it is the one that asks."""
    return_value: Any = None
    """What rank 0's training function returned, from `fit()`; None for results read from a path."""
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The metrics history: each report once, those that were overtaken by a resumed attempt left out. Where the run
    goes on from an earlier one of its name, that one's reports come first, up to the checkpoint from which it goes on.
    """
    attempts: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """How each attempt began, part by part in milliseconds, and where the time went, as `tj history -o json` has them;
    from `fit()`, empty for results read from a path.
    """

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem that reads `path`, as Ray Train has it. Raises ImportError without pyarrow."""
        return filesystems.of(self.path)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Result:
        """The newest run in a job's folder: `Result.path`, or `storage_path` and the name that the run was given
        (`os.path.join(storage_path, "My Run")`). Raises LaunchError when there is none.
        """
        places = folders_of(path)
        folder = places[0]
        try:
            found = next((place for place in places if open_store(place).names("runs")), None)
        except StoreError as trouble:
            raise LaunchError(f"the results in {folder} cannot be read: {trouble}") from trouble
        if found is None:
            raise LaunchError(
                f"{folder} is no folder of a TrainJob (it has no runs/, and neither has {places[-1]}): give "
                "<storage path>/<name>, or <storage path>/<namespace>/<name> for a job of a cluster"
            )
        return read(found)

    @cached_property
    def metrics_dataframe(self) -> pandas.DataFrame | None:
        """`rows` as a table: one row per report, with its position, step, epoch, time, checkpoint, run and attempt
        beside the metrics; needs pandas. None without reports.
        """
        if not self.rows:
            return None
        try:
            import pandas
        except ImportError as error:
            raise LaunchError(
                "Result.metrics_dataframe needs pandas: pip install pandas (Result.rows has the same without it)"
            ) from error
        names = ("position", "step", "epoch", "time", "checkpoint", "run", "attempt")
        return pandas.DataFrame(
            [{**{name: row.get(name) for name in names}, **inventory.flat(row["metrics"])} for row in self.rows]
        )

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of `best_checkpoints` the one with the highest ("max") or lowest ("min") value, of equal ones the later;
        None when there are none. Raises ConfigError when none of them has that metric.

        ```python
        best = result.get_best_checkpoint("loss", "min")
        if best:
            best.to_directory("./best")
        ```
        """
        if mode not in ("max", "min"):
            raise ConfigError("mode", mode, "give 'max' or 'min'")
        scored = [
            Scored(CheckpointId(1, 1, place), metrics) for place, (_, metrics) in enumerate(self.best_checkpoints, 1)
        ]
        best = inventory.best_id(scored, Policy(None, metric, mode))
        if best is not None:
            return self.best_checkpoints[best.index - 1][0]
        if not scored:
            return None
        names = sorted({name for one in scored for name in inventory.flat(one.metrics)})
        raise ConfigError("metric", metric, f"no checkpoint was reported with such a number; there are: {names}")


def read(
    folder: str,
    *,
    error: Exception | None = None,
    return_value: Any = None,
    environ: Mapping[str, str] | None = None,
    status: TrainJobStatus | None = None,
) -> Result:
    """The newest run in the job's folder. `environ`: by which a bucket is reached, instead of this process's
    environment; `status`: the job's last one, where it was seen.
    """
    try:
        store = open_store(folder, environ=environ)
        run = catalogue.latest_run(store)
        entries = [] if run is None else inventory.lineage(store, run)
        kept = {entry.id: entry.manifest for entry in entries if entry.good and entry.manifest is not None}
        policy = Policy() if run is None else inventory.read_policy(store, run)
        best = retention.best([Scored(id_, one.note.metrics) for id_, one in kept.items()], policy)
        history = [] if run is None else catalogue.lineage_history(store, run)
        rows = [row for row in history if row.get("kind") == "report"]
        latest = handle(folder, kept[max(kept)]) if kept else _origin(store, run, environ)
    except StoreError as trouble:
        raise LaunchError(f"the results in {folder} cannot be read: {trouble}") from trouble
    return Result(
        path=folder,
        metrics=dict(kept[max(kept)].note.metrics) if kept else (dict(rows[-1]["metrics"]) if rows else None),
        checkpoint=latest,
        best_checkpoints=[(handle(folder, kept[id_]), dict(kept[id_].note.metrics)) for id_ in best],
        error=error,
        return_value=return_value,
        rows=rows,
        attempts=() if status is None else clock.as_json(status),
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
        "elsewhere": manifest.is_note,
    }
    return Checkpoint.from_restored(found)
