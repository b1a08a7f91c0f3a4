"""Ray's names for experiment trackers: trainjob.trackers by them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainjob.launch.handover.callbacks import Report
from trainjob.trackers import MLflowLogger, WandbLogger


class WandbLoggerCallback(WandbLogger):
    """Takes what Ray's takes; checkpoints are not uploaded: they lie on the job's storage."""

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(project, group=group, patience_s=upload_timeout, **kwargs)
        if api_key_file is not None:
            with open(os.path.expanduser(api_key_file), encoding="utf-8") as file:
                api_key = file.readline().strip()
        if api_key is not None:
            os.environ["WANDB_API_KEY"] = api_key
        self._excludes = frozenset(excludes or ())

    def row(self, report: Report) -> dict[str, Any]:
        """Without what is excluded."""
        return {name: value for name, value in super().row(report).items() if name not in self._excludes}


class MLflowLoggerCallback(MLflowLogger):
    """Takes what Ray's takes; no artifacts: checkpoints lie on the job's storage."""

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        super().__init__(tracking_uri, experiment_name, tags=tags)
        if tracking_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
