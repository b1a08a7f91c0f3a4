"""What the callbacks of libraries that boost trees have in common: a booster as the checkpoint, counted in rounds."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar

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


def tell_of_sampling(library: str, rounds: int, names: List[str]) -> None:
    """Rank 0 warns that a training which continues after so many rounds draws its samples anew: `names` of parameters,
    none: nothing is sampled. Not an error: the model is as good.
    """
    if rounds and names and calls.get_context().rank == 0:
        warnings.warn(
            f"{library} begins its random numbers anew at round {rounds}, where this training resumes: with "
            f"{', '.join(names)} the model is not the one of an undisturbed run, but as good.",
            stacklevel=3,
        )


def report(metrics: Dict[str, Any], rounds: int, file: str, save: Callable[[str], Any]) -> None:
    """From all ranks: `metrics` and `round`, with the booster that rank 0 saves as `file`."""
    report_with({**metrics, "round": rounds}, file, save, step=rounds)


def report_with(metrics: Dict[str, Any], file: str, save: Callable[[str], Any], step: Optional[int] = None) -> None:
    """From all ranks: `metrics`, with the booster that rank 0 saves as `file`."""
    first = calls.get_context().rank == 0
    with tempfile.TemporaryDirectory() as folder:
        if first:
            save(os.path.join(folder, file))
        calls.report(
            metrics,
            checkpoint=Checkpoint.from_directory(folder) if first else None,
            delete_local_checkpoint_after_upload=True,
            step=step,
        )


class Newest(Generic[_Booster]):
    """The booster in the newest checkpoint, of one library. Loops ask for it and for its rounds, in any order; its file
    is read once for both.
    """

    def __init__(self, file: str, read: Callable[[str], _Booster], rounds_of: Callable[[_Booster], int]) -> None:
        """`file`: its name in the checkpoint."""
        self._file = file
        self._read = read
        self._rounds_of = rounds_of
        self._rounds: Tuple[Optional[str], int] = (None, 0)
        """Of which checkpoint, how many."""
        self._kept: Tuple[Optional[str], Optional[_Booster]] = (None, None)
        """For who asks for it next: each gets one of its own."""

    def load(self) -> Optional[_Booster]:
        """None: there is no checkpoint."""
        checkpoint = calls.get_checkpoint()
        (kept_of, kept), self._kept = self._kept, (None, None)
        if checkpoint is None or (kept is not None and kept_of == checkpoint.id):
            return None if checkpoint is None else kept
        with checkpoint.as_directory() as folder:
            booster = self._read(os.path.join(folder, self._file))
        self._rounds = checkpoint.id, int(self._rounds_of(booster))
        return booster

    def rounds_left(self, of: int) -> int:
        """Of so many rounds, those that it does not have."""
        checkpoint = calls.get_checkpoint()
        if checkpoint is None:
            return of
        if self._rounds[0] is None or self._rounds[0] != checkpoint.id:
            self._kept = checkpoint.id, self.load()
        return max(0, of - self._rounds[1])
