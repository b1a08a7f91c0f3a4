"""What the callbacks of libraries that boost trees have in common: a booster as the checkpoint, counted in rounds."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Dict, Optional, TypeVar

from trainjob.integrations.wishes import Wishes
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint

_Booster = TypeVar("_Booster")


class Rounds:
    """When a booster is reported: after each n-th round, and where a planned change waits for a checkpoint.

    `every_n_rounds`: a whole number from 1, or None; raises ValueError for anything else.
    """

    def __init__(self, every_n_rounds: Optional[int]) -> None:
        if every_n_rounds is not None and (not isinstance(every_n_rounds, int) or every_n_rounds < 1):
            raise ValueError(f"ReportCallback(every_n_rounds={every_n_rounds!r}): a whole number of 1 or more, or None")
        self._every = every_n_rounds
        self._wishes = Wishes()

    def is_due(self, rounds: int) -> bool:
        """Whether the booster is reported that has so many. Asked on all ranks, after each round."""
        return self._wishes.heard() or (self._every is not None and rounds % self._every == 0)


def report(metrics: Dict[str, Any], rounds: int, file: str, save: Callable[[str], Any]) -> None:
    """From all ranks: `metrics` and `round`, with the booster that rank 0 saves as `file`."""
    first = calls.get_context().rank == 0
    with tempfile.TemporaryDirectory() as folder:
        if first:
            save(os.path.join(folder, file))
        calls.report(
            {**metrics, "round": rounds},
            checkpoint=Checkpoint.from_directory(folder) if first else None,
            delete_local_checkpoint_after_upload=True,
            step=rounds,
        )


def load(file: str, read: Callable[[str], _Booster]) -> Optional[_Booster]:
    """The booster in the newest checkpoint, if there is one."""
    checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return read(os.path.join(folder, file))
