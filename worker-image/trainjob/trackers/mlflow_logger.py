"""Reports as metrics of an MLflow run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import tracker

_TAG = "trainjob.training"
_NAMELESS = re.compile(r"[^\w\-./ :]")
_BATCH = 1000
"""Metrics in a call, at most: MLflow's limit."""
_PARAMETERS = 100
SOON = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Environment of a process in which MLflow is a tracker's alone: it tries for minutes before it says that its server is
away, and the feed tries again anyway."""


class MLflowLogger(tracker.Tracker):
    """Writes the numbers of each report into an MLflow run, and `train_loop_config` as its parameters.

    A training has one run of MLflow's, whichever attempts and starts of the job it takes. MLflow keeps what it was
    given: steps that are done again after a failure are there twice, and the metric `trainjob/attempt` says from which
    step on an attempt wrote. Needs `pip install mlflow-skinny`, or mlflow.

    - `tracking_uri`: the server, or a database; None: MLFLOW_TRACKING_URI, and without it the folder `mlruns` in the
      job's folder (or, where that is not on this machine, in ./<name>).
    - `experiment_name`: created where it is not there; None: MLFLOW_EXPERIMENT_NAME, else `trainjob`.
    - `tags`: of the run. `run_name`: None: the job's name.
    - `patience_s`: for how long the end of `fit()` waits for it.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        run_name: str | None = None,
        patience_s: float = 30.0,
    ) -> None:
        super().__init__(patience_s=patience_s)
        tracker.need("mlflow", "mlflow-skinny")
        self._uri, self._experiment, self._tags, self._run_name = tracking_uri, experiment_name, tags, run_name
        self._client: Any = None
        self._run = ""

    def place(self, run_context: RunContext) -> str:
        """Server, database or folder, without the password that its URI may have."""
        told = self._told() or tracker.folder_of(None, run_context, "mlruns")
        return re.sub(r"//[^/@]*@", "//", told)

    def open(self, run_context: RunContext, first: Report) -> None:
        """Finds the run of this training, or makes it."""
        from mlflow.entities import Param

        experiment, training, found = self._found(run_context, first)
        # Where the storage is not seen nobody knows whether it is the same training: one that begins is another.
        if found is not None and (first.first_run is not None or first.position > 1):
            self._run = found
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {_TAG: training, "trainjob.folder": run_context.path, **(self._tags or {})}
            name = self._run_name or run_context.name
            self._run = self._client.create_run(experiment, tags=tags, run_name=name).info.run_id
            given = list(tracker.settings(run_context).items())[:_PARAMETERS]
            parameters = [Param(_name(name), str(value)[:500]) for name, value in given]
            self._client.log_batch(self._run, params=parameters)
        self.restart(first)

    def restart(self, first: Report) -> None:
        """Marks where the attempt begins."""
        if first.attempt is not None:
            self._log([(first, "trainjob/attempt", float(first.attempt))])

    def write(self, reports: Sequence[Report]) -> None:
        """In as few calls as MLflow takes."""
        self._log([(report, *pair) for report in reports for pair in tracker.numbers(report).items()])

    def settle(self, run_context: RunContext, last: Report, error: BaseException | None) -> None:
        """Says how it ended."""
        _, _, found = self._found(run_context, last)
        if found is not None:
            self._run = found
            self.close(error)

    def close(self, error: BaseException | None) -> None:
        """Says how it ended."""
        ends = {True: "FINISHED", False: "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"}
        self._client.set_terminated(self._run, ends[error is None])

    def _found(self, run_context: RunContext, report: Report) -> tuple[str, str, str | None]:
        """The experiment, the training's tag, and the run that has it."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._uri_for(run_context))
        experiment = self._experiment_id(
            self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "trainjob",
        )
        training = tracker.training_of(run_context, report)
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{training}'", max_results=1)
        return experiment, training, str(found[0].info.run_id) if found else None

    def _log(self, rows: list[tuple[Report, str, float]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_name(name), value, int((report.time or time.time()) * 1000), tracker.step_of(report))
            for report, name, value in rows
        ]
        for at in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[at : at + _BATCH])

    def _told(self) -> str | None:
        return self._uri or os.environ.get("MLFLOW_TRACKING_URI")

    def _uri_for(self, run_context: RunContext) -> str:
        if told := self._told():
            return told
        # MLflow 3 asks for this word before it takes a folder, the one form that needs neither server nor database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        return "file://" + tracker.folder_of(None, run_context, "mlruns")

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)


def _name(name: str) -> str:
    """A name that MLflow takes."""
    return _NAMELESS.sub("_", name)
