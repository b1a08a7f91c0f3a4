"""PyTorch Lightning: its Trainer as the ranks of a TrainJob.

A strategy tells Lightning which rank this is and where its device is (`ranks.py`, `sharded.py`); `ReportCallback` makes
Lightning's own checkpoint file the job's (`reports.py`); `prepare_trainer` checks both and resumes.
Ray's names for these are in `trainjob.compat.ray_lightning`.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Optional

from trainjob.integrations.lightning.ranks import (
    HOW,
    OfTheJob,
    TrainJobDDPStrategy,
    TrainJobEnvironment,
    check_size,
)
from trainjob.integrations.lightning.reports import FILE, ReportCallback
from trainjob.integrations.lightning.sharded import (
    TrainJobDeepSpeedStrategy,
    TrainJobFSDPStrategy,
    TrainJobModelParallelStrategy,
)
from trainjob.session import calls
from trainjob.session.errors import TrainJobError

__all__ = [
    "ReportCallback",
    "TrainJobDDPStrategy",
    "TrainJobDeepSpeedStrategy",
    "TrainJobEnvironment",
    "TrainJobFSDPStrategy",
    "TrainJobModelParallelStrategy",
    "load_path",
    "prepare_trainer",
]

AUTO = "auto"


def prepare_trainer(trainer: Any) -> Any:
    """The same trainer, checked, whose `fit(ckpt_path="auto")` resumes from the job's newest checkpoint.

    Raises TrainJobError where Lightning would train each rank alone, or on other ranks than the job's.
    """
    if not isinstance(trainer.strategy, OfTheJob):
        raise TrainJobError(
            f"the Trainer's strategy is {type(trainer.strategy).__name__}, which does not know the job's ranks: use "
            f"{HOW}"
        )
    check_size(trainer)
    plain_fit = trainer.fit

    arguments = inspect.signature(plain_fit)

    @functools.wraps(plain_fit)
    def fit(*args: Any, **kwargs: Any) -> Any:
        given = arguments.bind(*args, **kwargs)
        if given.arguments.get("ckpt_path") == AUTO:
            given.arguments["ckpt_path"] = load_path()
        return plain_fit(*given.args, **given.kwargs)

    if not getattr(plain_fit, "takes_auto", False):
        fit.takes_auto = True  # type: ignore[attr-defined]
        trainer.fit = fit
    return trainer


def load_path() -> Optional[str]:
    """The file (or folder) of the newest checkpoint for `fit(ckpt_path=...)`; None: the training begins.

    Also brings back the position in the data and, under `enable_reproducibility()`, the random numbers.
    """
    checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        raise TrainJobError(
            f"the checkpoint {checkpoint.path} holds no {FILE}: it was not reported by ReportCallback. Load it "
            "yourself, or start the job under another name."
        )
    return path
