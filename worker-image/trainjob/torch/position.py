"""Where a data loader stands: the epoch, how many batches of it were handed out, and where its order is dealt by us the
cursor: how many samples, on all ranks, at whatever sizes (see `dealing`). Pure; knows neither torch nor ranks.

Used by `loader`, one `Position` per prepared loader. The rules, which `prepare_data_loader` documents for users:

- An epoch ends when its iteration is exhausted or given up (a `break`); the next iteration is the next epoch.
- A checkpoint that was reported while an iteration was continuing resumes in that epoch, at the next batch (also when
  the last batch had been handed out: the resumed iteration is then empty, and what follows the loop runs). One reported
  after the iteration had ended resumes with the next epoch.
- An iteration given up after its first batch, without a report in between, was a look at the data
  (`next(iter(loader))`)
  and does not count.
- An epoch number that the user sets wins; if it is not the unfinished epoch, it starts from its first batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Optional

from trainjob.torch.dealing import Dealing


@dataclass(frozen=True, eq=False)
class Pass:
    """One iteration, as it is to be run."""

    epoch: int
    skip: int
    """Batches of the epoch that were handed out before; 0 for a fresh epoch."""
    start: Any
    """What `began` noted when the epoch first began, for a resumed one; None for a fresh epoch."""
    cursor: Optional[int] = None
    """Samples of the epoch that were handed out before, on all ranks; None where our cursor does not deal them."""


class Position:
    """Mutable: `begin` an iteration, `handed_out` each batch, then `exhausted` or `given_up`."""

    def __init__(self) -> None:
        self._epoch = 0
        self._dealing: Optional[Dealing] = None
        """Of the iteration that continues."""
        self._open = False
        """The epoch has begun and not ended."""
        self._fresh = True
        """No iteration has counted yet: the first one is `_epoch` itself."""
        self._start: Any = None
        self._resume: Optional[Pass] = None
        """What the next iteration is: the unfinished epoch of the checkpoint, until it has gone on for good, or one
        that was only looked at.
        """
        self._run: Optional[Pass] = None
        self._in_pass = 0
        self._saved_in_pass = False

    def begin(self, chosen_epoch: Optional[int] = None) -> Pass:
        """The next iteration. `chosen_epoch`: the user set this epoch number since the last one."""
        if self._open and self._run is not None:
            self.given_up(self._run)  # its iterator is still held somewhere
        if self._resume is not None and chosen_epoch in (None, self._resume.epoch):
            run = replace(self._resume)
        elif chosen_epoch is not None:
            run = Pass(chosen_epoch, 0, None)
        else:
            run = Pass(self._epoch if self._fresh else self._epoch + 1, 0, None)
        self._epoch, self._open, self._fresh, self._start = run.epoch, True, False, run.start
        self._run, self._in_pass, self._saved_in_pass, self._dealing = run, 0, False, None
        return run

    def began(self, start: Any) -> None:
        """Note what the epoch's order was drawn from."""
        self._start = start

    def dealt(self, dealing: Dealing) -> None:
        """Note how the samples of this iteration are dealt."""
        self._dealing = dealing

    def handed_out(self, run: Pass) -> None:
        """One batch goes to the user. Of an older iteration than the last begun one: not counted, here and below."""
        if run is not self._run:
            return
        self._in_pass += 1
        if self._in_pass > 1:
            self._resume = None

    def exhausted(self, run: Pass) -> None:
        """The iteration came to its end."""
        if run is self._run:
            self._open, self._run, self._resume = False, None, None

    def given_up(self, run: Pass) -> None:
        """The iteration was left before its end."""
        if run is not self._run:
            return
        if self._in_pass <= 1 and not self._saved_in_pass:
            # A look at the data: the next iteration is this one again.
            self._open, self._run, self._resume = False, None, replace(run)
            return
        self.exhausted(run)

    @property
    def resumed(self) -> bool:
        """An iteration is continuing that continues an epoch of before the checkpoint."""
        return self._run is not None and self._run.skip > 0

    def save(self) -> Dict[str, Any]:
        """For a checkpoint."""
        self._saved_in_pass = True
        if self._resume is not None and not self._open:
            # Not iterated since: still where the checkpoint before, or the look, stood.
            return _saved(self._resume, is_open=True, fresh=False)
        stands = self._stands()
        return _saved(stands if self._open else replace(stands, start=None), self._open, self._fresh)

    def _stands(self) -> Pass:
        """Where the epoch would be gone on with."""
        run = self._run
        if run is None:
            return Pass(self._epoch, 0, self._start)
        if self._dealing is None:
            return Pass(self._epoch, run.skip + self._in_pass, self._start)
        handed = run.skip + self._dealing.whole(self._in_pass)
        return Pass(self._epoch, handed, self._start, self._dealing.cursor(self._in_pass))

    def restore(self, saved: Dict[str, Any], old_world_size: int, world_size: int, per_batch: Optional[int]) -> bool:
        """Continue from a checkpoint. False: the number of ranks changed, and nobody knows exactly which samples of the
        epoch were handed out.

        `per_batch`: samples of one batch of a rank, where the order is dealt by the cursor; checkpoints of before there
        was one count batches. None: a dataset or sampler of the user's divides itself. `handed` batches on each of the
        old ranks are then `handed * old / new` on each of the new ones. 0: each rank has all the data.
        """
        self._epoch, self._open, self._run, self._fresh = saved["epoch"], False, None, saved["fresh"]
        handed, cursor, rest = int(saved["handed"]), saved.get("cursor"), 0
        if per_batch is None:
            handed, rest = divmod(handed * old_world_size, world_size)
        elif cursor is None:
            cursor = handed * old_world_size * per_batch
        self._resume = Pass(self._epoch, handed, saved["start"], cursor) if saved["open"] else None
        return rest == 0


def _saved(stands: Pass, is_open: bool, fresh: bool) -> Dict[str, Any]:
    return {
        "epoch": stands.epoch,
        "handed": stands.skip,
        "open": is_open,
        "fresh": fresh,
        "start": stands.start,
        "cursor": stands.cursor,
    }
