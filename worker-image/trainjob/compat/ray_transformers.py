"""`ray.train.huggingface.transformers`: Ray's names for `trainjob.integrations.huggingface`."""

from __future__ import annotations

from typing import Any

from trainjob.integrations import huggingface as ours


class RayTrainReportCallback(ours.ReportCallback):
    """Reports each checkpoint that the Trainer saves, in the folder `checkpoint`, with all that was logged so far.

    Save as often as you evaluate (`save_strategy` and `eval_strategy` alike), so that the metrics are the checkpoint's.
    """

    CHECKPOINT_NAME = ours.FOLDER


def prepare_trainer(trainer: Any) -> Any:
    """The trainer, once it is sure that its ranks are the job's; as Ray has it, `train()` begins anew unless a path is
    given. Raises TrainJobError with what to look at.
    """
    ours.check_size(trainer.args)
    return trainer
