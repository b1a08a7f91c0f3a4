"""`ray.train.lightning`: Ray's names for `trainjob.integrations.lightning`."""

from __future__ import annotations

from typing import Any

from trainjob.integrations import lightning as ours
from trainjob.integrations.lightning.library import pl
from trainjob.integrations.lightning.reports import FILE, Reporting

RayDDPStrategy = ours.TrainJobDDPStrategy
RayFSDPStrategy = ours.TrainJobFSDPStrategy
RayDeepSpeedStrategy = ours.TrainJobDeepSpeedStrategy
RayLightningEnvironment = ours.TrainJobEnvironment


class RayTrainReportCallback(Reporting, pl.callbacks.Callback):  # type: ignore[misc]
    """Reports at the end of each training epoch, as Ray has it. To Lightning it is no callback that saves: scripts say
    `enable_checkpointing=False` beside it.
    """

    CHECKPOINT_NAME = FILE

    def __init__(self, checkpoint_upload_mode: Any = None, validation: Any = False) -> None:
        super().__init__(checkpoint_upload_mode=checkpoint_upload_mode, validation=validation)


def prepare_trainer(trainer: Any) -> Any:
    """The trainer, once it is sure that its ranks are the job's. Raises TrainJobError with what to give it."""
    return ours.prepare_trainer(trainer)
