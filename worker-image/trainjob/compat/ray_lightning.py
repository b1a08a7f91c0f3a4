"""`ray.train.lightning`: Ray's names for `trainjob.integrations.lightning`."""

from __future__ import annotations

from typing import Any, Dict

from trainjob.integrations import lightning as ours

RayDDPStrategy = ours.TrainJobDDPStrategy
RayFSDPStrategy = ours.TrainJobFSDPStrategy
RayDeepSpeedStrategy = ours.TrainJobDeepSpeedStrategy
RayLightningEnvironment = ours.TrainJobEnvironment


class RayTrainReportCallback(ours.pl.callbacks.Callback):  # type: ignore[misc]
    """Reports at the end of each training epoch, as Ray has it. To Lightning it is no callback that saves: scripts say
    `enable_checkpointing=False` beside it.
    """

    CHECKPOINT_NAME = ours.FILE

    def __init__(self, checkpoint_upload_mode: Any = None, validation: Any = False) -> None:
        super().__init__()
        self._ours = ours.ReportCallback(checkpoint_upload_mode=checkpoint_upload_mode, validation=validation)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses a trainer whose ranks would train alone."""
        self._ours.setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """What is resumed was reported."""
        self._ours.on_train_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any, **named: Any) -> None:
        """Where a planned change waits for a checkpoint."""
        self._ours.on_train_batch_end(trainer, pl_module, *rest, **named)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The report."""
        self._ours.on_train_epoch_end(trainer, pl_module)

    def state_dict(self) -> Dict[str, Any]:
        """The newest metrics."""
        found: Dict[str, Any] = self._ours.state_dict()
        return found

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As it was saved."""
        self._ours.load_state_dict(state_dict)


def prepare_trainer(trainer: Any) -> Any:
    """The trainer, once it is sure that its ranks are the job's. Raises TrainJobError with what to give it."""
    return ours.prepare_trainer(trainer)
