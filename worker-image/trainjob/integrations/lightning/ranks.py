"""Lightning's view of the ranks of a TrainJob, and DDP's strategy, which brings it along (`sharded.py`: the others).

Lightning else takes the number of ranks from `devices` and `num_nodes`, and each rank may train alone. The strategies
also make the training loader resume at the next batch.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib import import_module
from typing import Any, Dict, Optional

import torch
from torch.utils.data import DataLoader

from trainjob.integrations.lightning.library import pl
from trainjob.session import calls
from trainjob.session.errors import TrainJobError
from trainjob.torch import get_device, init_process_group, prepare_data_loader, reproducible

_Base: Any = object
"""Of what stands before Lightning's own classes."""
_environments: Any = import_module(f"{pl.__name__}.plugins.environments")
HOW = (
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


class OfTheJob(_Base):  # type: ignore[misc]
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


class TrainJobDDPStrategy(OfTheJob, pl.strategies.DDPStrategy):  # type: ignore[misc]
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


def count_for(trainer: Any, saved_ranks: int) -> None:
    """Has Lightning count the batches of the epoch that it resumes as those of this number of ranks: it leaves the
    epoch when it has counted to its length, whatever the loader still has. The loader itself continues where so many
    ranks have left it (`Position.restore`).
    """
    ranks = calls.get_context().world_size
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if saved_ranks == ranks or trainer.num_training_batches == float("inf"):
        return
    current = progress.current
    done = trainer.num_training_batches if progress.is_last_batch else current.processed * saved_ranks // ranks
    ended = current.completed - current.processed  # -1: saved before Lightning has counted the batch as completed
    current.ready = current.started = current.processed = done
    current.completed = done + ended


def _nothing_to_load(_: Any) -> None:
    """See `process_dataloader`."""


def check_size(trainer: Any) -> None:
    ranks = calls.get_context().world_size
    if trainer.world_size != ranks:
        raise TrainJobError(
            f"the job has {ranks} ranks, and Lightning counts {trainer.world_size} (devices={trainer.num_devices}, "
            f"num_nodes={trainer.num_nodes}): ranks would train on all the data alone, or wait for others that do not "
            f"exist. Use {HOW}"
        )
