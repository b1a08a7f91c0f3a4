"""`ray.train.lightgbm`: Ray's names for `trainjob.integrations.lightgbm`."""

from __future__ import annotations

import os
from typing import Any, Dict

from trainjob.compat.ray_boosters import Reports
from trainjob.integrations.lightgbm import FILE, network_params  # first: it says what to install

import lightgbm  # isort: skip


def get_network_params() -> Dict[str, Any]:
    """For `lightgbm.train(params)`: this rank's peers, anew in each attempt."""
    return network_params()


class RayTrainReportCallback:
    """Reports the metrics after each round, and the booster as Ray has it: with each `frequency`-th round, and with the
    last one.
    """

    CHECKPOINT_NAME = FILE
    order = 25
    """After LightGBM's own callbacks of 10 to 20, before early stopping, which raises."""
    before_iteration = False

    def __init__(
        self,
        metrics: Any = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Any = None,
    ) -> None:
        self._reports = Reports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._rounds = 0

    def __call__(self, env: Any) -> None:
        """LightGBM calls it after each round, on every rank."""
        self._rounds += 1
        values: Dict[str, Dict[str, float]] = {}
        for data, name, value, *_ in env.evaluation_result_list or ():
            values.setdefault(data, {})[name] = float(value)

        def save(path: str) -> None:
            env.model.save_model(path, num_iteration=-1)

        self._reports.after_round(self._rounds, values, save, is_last=env.iteration + 1 == env.end_iteration)

    @classmethod
    def get_model(cls, checkpoint: Any, filename: str = CHECKPOINT_NAME) -> Any:
        """The booster in a checkpoint."""
        with checkpoint.as_directory() as folder:
            return lightgbm.Booster(model_file=os.path.join(folder, filename))
