"""`ray.train.xgboost`: Ray's names for `trainjob.integrations.xgboost`."""

from __future__ import annotations

import os
from typing import Any

from trainjob.compat.ray_boosters import Reports
from trainjob.integrations.xgboost import FILE  # first: it says what to install

import xgboost  # isort: skip
from xgboost.callback import TrainingCallback  # isort: skip


class RayTrainReportCallback(TrainingCallback):  # type: ignore[misc,unused-ignore]
    """Reports the metrics after each round, and the booster as Ray has it: with each `frequency`-th round, and with the
    last one.
    """

    CHECKPOINT_NAME = FILE

    def __init__(
        self,
        metrics: Any = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Any = None,
    ) -> None:
        super().__init__()
        self._reports = Reports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._rounds = 0

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """XGBoost calls it after each round, on every rank."""
        self._rounds += 1
        values = {
            data: {name: row[-1][0] if isinstance(row[-1], tuple) else row[-1] for name, row in names.items()}
            for data, names in evals_log.items()
        }
        self._reports.after_round(self._rounds, values, model.save_model)
        return False

    def after_training(self, model: Any) -> Any:
        """The last booster, unless it was reported."""
        self._reports.after_training(self._rounds, model.save_model)
        return model

    @classmethod
    def get_model(cls, checkpoint: Any, filename: str = CHECKPOINT_NAME) -> Any:
        """The booster in a checkpoint."""
        with checkpoint.as_directory() as folder:
            return xgboost.Booster(model_file=os.path.join(folder, filename))
