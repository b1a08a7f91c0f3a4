"""Trackers by the words that name them, KIND or KIND=WHERE: of `tj run --track` and of spec.tracking."""

from __future__ import annotations

from collections.abc import Callable

from trainjob.trackers.csv_logger import CSVLogger
from trainjob.trackers.mlflow_logger import MLflowLogger
from trainjob.trackers.tensorboard_logger import TensorBoardLogger
from trainjob.trackers.tracker import Tracker
from trainjob.trackers.wandb_logger import WandbLogger

_KINDS: dict[str, Callable[[str | None], Tracker]] = {
    "csv": CSVLogger,
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}


def made(word: str) -> Tracker:
    """Raises ValueError for a kind that is none, MissingLibraryError."""
    kind, _, where = word.partition("=")
    if kind not in _KINDS:
        raise ValueError(f"there is no tracker {kind!r}")
    return _KINDS[kind](where or None)
