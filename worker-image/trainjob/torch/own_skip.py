"""Notices a loop that skips batches by itself although the prepared loader resumed in mid-epoch: pure.

Used by `loader`, one `OwnSkip` per prepared loader. Such a loop (`if i < start: continue`) was right with a loader that
starts every epoch at its first batch. Here it would skip twice, train on less than it should, and end as if all was
well. The sign: before the checkpoint, work was done with the batches (an optimizer's step, a report), at most `usual`
of them apart; after it, as many batches go by without any work as the loader had left out (and as many as a step
takes, where gradients are accumulated), or all that are left.
"""

from __future__ import annotations

from typing import Optional

from trainjob.session.errors import TrainJobError

LEAST = 2
"""Batches; one without work may be a step that a gradient scaler left out."""


class SkippedTwiceError(TrainJobError):
    """The loop skips batches that the loader has left out already."""


class OwnSkip:
    """Mutable: `begins` a pass, then for each batch `handed_out`, any number of `worked`, `went_by`; then `ended`."""

    def __init__(self) -> None:
        self._works = 0
        self._usual = 0
        self._idle = 0
        self._since = False
        self._skip = 0
        self._expects: Optional[int] = None
        """The `usual` of before the checkpoint, in a resumed pass before its first work."""
        self._resumed: Optional[int] = None
        self._epoch = 0

    def begins(self, epoch: int, skip: int) -> None:
        """A pass; `skip` batches of its epoch are left out."""
        self._idle, self._since, self._epoch, self._skip = 0, False, epoch, skip
        self._expects = self._resumed if skip else None

    def handed_out(self) -> None:
        """A batch goes to the loop."""
        self._since = False

    def worked(self) -> None:
        """An optimizer stepped, or a report was made."""
        if not self._since:
            self._works += 1
            self._usual = max(self._usual, self._idle)
        self._since = True

    def went_by(self) -> None:
        """The loop wants the next batch. Raises SkippedTwiceError."""
        if not self._since:
            self._idle += 1
            return
        idle, expected, self._idle, self._expects = self._idle, self._expects, 0, None
        if expected is None or idle < max(LEAST, expected + 1):
            return
        if self._skip - 1 <= idle <= self._skip + expected:
            raise self._error(min(idle, self._skip), "then continued with the next one")

    def ended(self) -> None:
        """The pass has handed out all. Raises SkippedTwiceError."""
        expected, idle, self._expects = self._expects, self._idle, None
        if expected is not None and idle >= max(LEAST, expected + 1):
            raise self._error(idle, "and then the epoch was over")

    def save(self) -> Optional[int]:
        """For a checkpoint: how many batches without work were usual; None before that is known."""
        return self._usual if self._works > 1 else None

    def restore(self, usual: Optional[int], times: int = 1) -> None:
        """From a checkpoint. `times`: so many ranks then are one now, whose step may take as many more batches."""
        self._resumed = None if usual is None else (usual + 1) * times - 1

    def _error(self, idle: int, then: str) -> SkippedTwiceError:
        return SkippedTwiceError(
            f"The loop skips batches twice. Epoch {self._epoch} was resumed: the loader itself left out the first "
            f"{self._skip} batches, which were handed out before the checkpoint. After that your loop took {idle} more "
            f"without an optimizer step or a report(), {then}: those would not be trained on. Remove your own skip "
            "(such as `if i < start: continue`), or keep it and call prepare_data_loader(..., resume=False)."
        )
