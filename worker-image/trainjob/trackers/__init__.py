"""Experiment trackers as callbacks of a run: `RunConfig(callbacks=[TensorBoardLogger()])`.

They are fed in the process that called `fit()`, beside the training: see `tracker`. No tracker's library is imported
before the first report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.launch.handover.callbacks import Report
from trainjob.session import unknown_name
from trainjob.trackers.csv_logger import CSVLogger
from trainjob.trackers.mlflow_logger import MLflowLogger
from trainjob.trackers.tensorboard_logger import TensorBoardLogger
from trainjob.trackers.tracker import Tracker
from trainjob.trackers.wandb_logger import WandbLogger

__all__ = ["CSVLogger", "MLflowLogger", "Report", "TensorBoardLogger", "Tracker", "WandbLogger"]

if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has every name
    __getattr__ = unknown_name.getter(__name__, __all__)
