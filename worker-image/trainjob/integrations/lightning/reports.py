"""Lightning's own checkpoint file as the job's: a callback that reports it with the trainer's metrics."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, Optional

from trainjob.integrations.lightning.library import pl
from trainjob.integrations.lightning.ranks import check_size, count_for
from trainjob.integrations.links import link_or_copy
from trainjob.integrations.wishes import Wishes
from trainjob.session import calls, offering
from trainjob.session.checkpoint import Checkpoint

_Base: Any = object
FILE = "checkpoint.ckpt"
"""Lightning's file (FSDP's sharded state: a folder) inside the checkpoint, as Ray Train names it."""
_OF_RANK_ZERO = ".of-rank-0"


class Reporting(_Base):  # type: ignore[misc]
    """The reports; stands before the class of Lightning's callbacks that it is to be."""

    def __init__(
        self,
        every_n_train_steps: Optional[int] = None,
        every_n_epochs: int = 1,
        checkpoint: bool = True,
        checkpoint_upload_mode: Any = None,
        validation: Any = False,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("every_n_train_steps", every_n_train_steps, 1),
            ("every_n_epochs", every_n_epochs, 0),
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"ReportCallback({name}={value!r}): a whole number of {least} or more")
        self._every_steps, self._every_epochs, self._checkpoint = every_n_train_steps, every_n_epochs, checkpoint
        if (
            str(getattr(checkpoint_upload_mode, "name", checkpoint_upload_mode))
            == offering.CheckpointUploadMode.NO_UPLOAD.name
        ):
            raise ValueError(
                "ReportCallback(checkpoint_upload_mode=NO_UPLOAD): the file is written into a temporary folder, which "
                "is gone afterwards. Use ASYNC or SYNC."
            )
        self._how = {"checkpoint_upload_mode": checkpoint_upload_mode, "validation": validation}
        self._reported_step = -1
        self._put_off = False
        self._wishes = Wishes()
        self._metrics: Dict[str, Any] = {}
        self._saved_ranks: Optional[int] = None

    def state_dict(self) -> Dict[str, Any]:
        """The newest value of each metric: that of a validation stands in the reports until the next one, and after a
        restart too.
        """
        return {"metrics": dict(self._metrics), "ranks": calls.get_context().world_size}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As it was saved."""
        self._metrics = dict(state_dict.get("metrics", {}))
        self._saved_ranks = state_dict.get("ranks")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses a trainer whose ranks would train alone."""
        check_size(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """What is resumed was reported."""
        self._reported_step = trainer.global_step
        saved_ranks, self._saved_ranks = self._saved_ranks, None
        if saved_ranks is not None:
            count_for(trainer, saved_ranks)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """After each n-th step; that of an epoch's last batch at the epoch's end: a file of before its validation
        resumes behind the validation, which nobody has run then.
        """
        step = trainer.global_step
        wished = self._wishes.heard() and self._checkpoint
        due = self._every_steps is not None and step % self._every_steps == 0
        if not (wished or due) or step in (0, self._reported_step) or trainer.fit_loop._should_accumulate():
            return
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._put_off = True
            return
        self._report(trainer, _written_for_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After each n-th epoch."""
        put_off, self._put_off = self._put_off, False
        if put_off or (self._every_epochs and (trainer.current_epoch + 1) % self._every_epochs == 0):
            self._report(trainer, _written_for_epoch)

    def _report(self, trainer: Any, is_written: Callable[[Any, Any], bool]) -> None:
        self._reported_step = trainer.global_step
        epoch = trainer.current_epoch
        self._metrics.update((name, value.item()) for name, value in trainer.callback_metrics.items())
        metrics = {**self._metrics, "epoch": epoch, "step": trainer.global_step}
        progress = {"step": trainer.global_step, "total_steps": _total_steps(trainer), "epoch": epoch}
        if not self._checkpoint:
            calls.report(metrics, **progress)
            return
        with tempfile.TemporaryDirectory() as folder:
            # All ranks write into rank 0's folder on a machine, each into its own on others: the path is Lightning's
            # to agree on.
            context = calls.get_context()
            here = os.path.join(folder, _OF_RANK_ZERO)
            if context.rank == 0:
                open(here, "w").close()
            shared = trainer.strategy.broadcast(folder)
            # Another worker on rank 0's machine sees the very same folder, and leaves it to rank 0.
            first = context.rank == 0 or (
                context.local_rank == 0 and not os.path.exists(os.path.join(shared, _OF_RANK_ZERO))
            )
            os.makedirs(shared, exist_ok=True)
            path = os.path.join(shared, FILE)
            written = _written_now(trainer, is_written)
            if written is None:
                trainer.save_checkpoint(path)
            elif trainer.is_global_zero:
                link_or_copy(written, path)
            trainer.strategy.barrier()
            if context.rank == 0:
                os.remove(here)
            brings = first and os.path.exists(path)
            calls.report(
                metrics,
                checkpoint=Checkpoint.from_directory(shared) if brings else None,
                # What ModelCheckpoint wrote stays its own: it is copied.
                delete_local_checkpoint_after_upload=written is None,
                **self._how,
                **progress,
            )
            if shared != folder and brings:
                shutil.rmtree(shared, ignore_errors=True)


class ReportCallback(Reporting, pl.callbacks.Checkpoint):  # type: ignore[misc]
    """Reports metrics, and Lightning's checkpoint with them, from all ranks.

    - `every_n_epochs`: at the end of each n-th epoch of training, after its validation; 0: never.
    - `every_n_train_steps`: also after each n-th optimizer step, so that a failure costs at most n steps.
    - `checkpoint=False`: metrics alone.
    - a planned change (another size, a restart, a suspension) that waits for a checkpoint gets one within seconds.
    - `checkpoint_upload_mode`, `validation`: as for `report()`.

    Metrics are the trainer's `callback_metrics` (what `self.log` was given), `epoch` and `step`. A file that a
    `ModelCheckpoint` has just written for this very step is taken instead of saving once more. With this callback
    Lightning adds no `ModelCheckpoint` of its own.
    """


def _total_steps(trainer: Any) -> Optional[int]:
    if trainer.max_steps is not None and trainer.max_steps > 0:
        return int(trainer.max_steps)
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if epochs is None or epochs < 1 or batches == float("inf"):
        return None
    return int(-(-batches // trainer.accumulate_grad_batches) * epochs)


def _written_now(trainer: Any, is_written: Callable[[Any, Any], bool]) -> Optional[str]:
    """The file of a ModelCheckpoint that was written at this very moment, on the ranks of its machine."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, pl.callbacks.ModelCheckpoint) and not callback.save_weights_only:
            path = callback._last_checkpoint_saved
            if callback._last_global_step_saved == trainer.global_step and path and is_written(trainer, callback):
                return str(path) if _is_seen_by_rank_zero(trainer, path) else None
    return None


def _written_for_step(trainer: Any, callback: Any) -> bool:
    return bool(callback._every_n_train_steps)


def _written_for_epoch(trainer: Any, callback: Any) -> bool:
    # One that is written at the validation's end resumes there, and not where the epoch has ended.
    return bool(callback._every_n_epochs) and bool(callback._should_save_on_train_epoch_end(trainer))


def _is_seen_by_rank_zero(trainer: Any, path: str) -> bool:
    return bool(trainer.strategy.broadcast(os.path.isfile(path)))
