"""PyTorch Lightning: its Trainer as the ranks of a TrainJob.

A strategy tells Lightning which rank this is and where its device is (else it takes the number of ranks from `devices`
and `num_nodes`, and each rank may train alone), and makes the training loader resume at the next batch;
`ReportCallback` makes Lightning's own checkpoint file the job's; `prepare_trainer` checks both and resumes.
Ray's names for these are in `trainjob.compat.ray_lightning`.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
import tempfile
from datetime import timedelta
from importlib import import_module
from typing import Any, Callable, Dict, Optional

import torch
from torch.utils.data import DataLoader

from trainjob.integrations.needed import MissingLibraryError
from trainjob.integrations.wishes import Wishes
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import TrainJobError
from trainjob.torch import get_device, init_process_group, prepare_data_loader, reproducible


def _lightning() -> Any:
    """The package that the script has imported itself, of the two that there are: their classes know nothing of each
    other.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "pytorch_lightning"):
                raise
    raise MissingLibraryError("lightning is not installed here: pip install 'lightning>=2.4'")


pl: Any = _lightning()
_Base: Any = object
"""Of what stands before Lightning's own classes."""
_environments: Any = import_module(f"{pl.__name__}.plugins.environments")

__all__ = [
    "ReportCallback",
    "TrainJobDDPStrategy",
    "TrainJobDeepSpeedStrategy",
    "TrainJobEnvironment",
    "TrainJobFSDPStrategy",
    "load_path",
    "prepare_trainer",
]

FILE = "checkpoint.ckpt"
"""Lightning's file (FSDP's sharded state: a folder) inside the checkpoint, as Ray Train names it."""
AUTO = "auto"
_OF_RANK_ZERO = ".of-rank-0"
_HOW = (
    "pl.Trainer(strategy=trainjob.lightning.TrainJobDDPStrategy(), callbacks=[trainjob.lightning.ReportCallback()], "
    "...), whatever `devices` says"
)


class TrainJobEnvironment(_environments.ClusterEnvironment):  # type: ignore[misc]
    """Lightning's view of the job: the ranks, and where rank 0 is. Both strategies bring it along."""

    @property
    def creates_processes_externally(self) -> bool:
        """Always: the agent starts the ranks."""
        return True

    @property
    def main_address(self) -> str:
        """MASTER_ADDR."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """MASTER_PORT."""
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Never by itself: a strategy asks for it."""
        return False

    def world_size(self) -> int:
        """Ranks of the job."""
        return calls.get_context().world_size

    def set_world_size(self, size: int) -> None:
        """Nothing: what Lightning makes of `devices` and `num_nodes` does not count."""

    def global_rank(self) -> int:
        """This rank."""
        return calls.get_context().rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing, as above."""
        pl.utilities.rank_zero_only.rank = self.global_rank()

    def local_rank(self) -> int:
        """Within this worker."""
        return calls.get_context().local_rank

    def node_rank(self) -> int:
        """This rank's worker."""
        return calls.get_context().node_rank


class _OfTheJob(_Base):  # type: ignore[misc]
    """What the strategies have in common; stands before Lightning's own class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = kwargs.pop("cluster_environment", None)
        super().__init__(*args, **kwargs)
        self._of_the_job = given if isinstance(given, TrainJobEnvironment) else TrainJobEnvironment()

    # Lightning asks the strategy whether it has one, refuses `plugins=[...]` beside it, and sets what it chose.
    @property
    def cluster_environment(self) -> Any:
        """The job's, once Lightning has set one of whatever kind; None before."""
        return self._of_the_job if getattr(self, "_environment_is_set", False) else None

    @cluster_environment.setter
    def cluster_environment(self, environment: Any) -> None:
        self._environment_is_set = environment is not None

    @property
    def root_device(self) -> torch.device:
        """This rank's (first) device."""
        return get_device()

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Of the job, not of `devices`."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup_environment(self) -> None:
        """The process group as the job's spec says, before Lightning would make one."""
        if self._process_group_backend is None and self._timeout_is_default():
            init_process_group()
        super().setup_environment()

    def _place(self, trainer: Any) -> int:
        made_for = int(trainer.fit_loop.epoch_progress.current.processed)
        epoch, place = getattr(self, "_last_place", (None, -1))
        place = place + 1 if epoch == made_for else 0
        self._last_place = made_for, place
        return place

    def _timeout_is_default(self) -> bool:
        from torch.distributed.constants import default_pg_timeout

        timeout: Optional[timedelta] = getattr(self, "_timeout", None)
        return timeout is None or timeout == default_pg_timeout

    def process_dataloader(self, dataloader: Any) -> Any:
        """The training loader keeps its position with each checkpoint; others are left as they are."""
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        if module is None or not isinstance(dataloader, DataLoader) or not _is_for_training(module.trainer):
            return dataloader
        try:
            len(dataloader)
        except TypeError:
            return dataloader  # Lightning is a batch ahead of one without a length: its place is not where training is
        loader: Any = prepare_data_loader(dataloader, add_dist_sampler=False, move_to_device=False, resume=False)
        # By its place among the training loaders: one that is made anew for each epoch is still the same one.
        loader._preparation.keep_position(f"lightning-{self._place(module.trainer)}")
        loader.set_epoch(_epoch_to_be_run(module.trainer))
        # Lightning takes a loader for resumable by these two; the position travels with the rank's own state.
        loader.state_dict = dict
        loader.load_state_dict = _nothing_to_load
        return loader


class TrainJobDDPStrategy(_OfTheJob, pl.strategies.DDPStrategy):  # type: ignore[misc]
    """`DDPStrategy` over the ranks of the job; takes the same arguments.

    Under `enable_reproducibility()` gradients are added in the same order before and after a restart.
    """

    strategy_name = "trainjob_ddp"

    def _setup_model(self, model: torch.nn.Module) -> Any:
        reproducible.go_apart()
        if reproducible.seed() is None:
            return super()._setup_model(model)
        from trainjob.torch.buckets import with_fixed_order

        return with_fixed_order(model, {"device_ids": self.determine_ddp_device_ids(), **self._ddp_kwargs})


class TrainJobFSDPStrategy(_OfTheJob, pl.strategies.FSDPStrategy):  # type: ignore[misc]
    """`FSDPStrategy` over the ranks of the job; takes the same arguments."""

    strategy_name = "trainjob_fsdp"


class TrainJobDeepSpeedStrategy(_OfTheJob, pl.strategies.DeepSpeedStrategy):  # type: ignore[misc]
    """`DeepSpeedStrategy` over the ranks of the job; takes the same arguments, and needs deepspeed."""

    strategy_name = "trainjob_deepspeed"


class ReportCallback(pl.callbacks.Checkpoint):  # type: ignore[misc]
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
            == calls.CheckpointUploadMode.NO_UPLOAD.name
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

    def state_dict(self) -> Dict[str, Any]:
        """The newest value of each metric: that of a validation stands in the reports until the next one, and after a
        restart too.
        """
        return {"metrics": dict(self._metrics)}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As it was saved."""
        self._metrics = dict(state_dict.get("metrics", {}))

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses a trainer whose ranks would train alone."""
        _check_size(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """What is resumed was reported."""
        self._reported_step = trainer.global_step

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
                _link_or_copy(written, path)
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


def prepare_trainer(trainer: Any) -> Any:
    """The same trainer, checked, whose `fit(ckpt_path="auto")` goes on from the job's newest checkpoint.

    Raises TrainJobError where Lightning would train each rank alone, or on other ranks than the job's.
    """
    if not isinstance(trainer.strategy, _OfTheJob):
        raise TrainJobError(
            f"the Trainer's strategy is {type(trainer.strategy).__name__}, which does not know the job's ranks: use "
            f"{_HOW}"
        )
    _check_size(trainer)
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


def _is_for_training(trainer: Any) -> bool:
    return bool(trainer.training) and trainer.overfit_batches == 0


def _epoch_to_be_run(trainer: Any) -> int:
    """What Lightning will call the next epoch with a batch in it. A file that was saved in the last batch of an epoch
    still counts that one as unprocessed.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_progress.current
    after_last = (
        loop.restarting and loop.epoch_loop.batch_progress.is_last_batch and progress.processed < progress.started
    )
    return int(progress.processed) + bool(after_last)


def _nothing_to_load(_: Any) -> None:
    """See `process_dataloader`."""


def _check_size(trainer: Any) -> None:
    ranks = calls.get_context().world_size
    if trainer.world_size != ranks:
        raise TrainJobError(
            f"the job has {ranks} ranks, and Lightning counts {trainer.world_size} (devices={trainer.num_devices}, "
            f"num_nodes={trainer.num_nodes}): ranks would train on all the data alone, or wait for others that do not "
            f"exist. Use {_HOW}"
        )


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


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
