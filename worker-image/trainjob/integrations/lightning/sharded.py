"""Lightning's strategies of which each rank keeps a part of the model, over the ranks of a TrainJob.

Lightning has all ranks read a checkpoint at rank 0's path. Here each rank reads its own: on another machine rank 0's
does not exist.
"""

from __future__ import annotations

from typing import Any, Dict

import torch

from trainjob.integrations.lightning.library import pl
from trainjob.integrations.lightning.ranks import OfTheJob
from trainjob.session import calls
from trainjob.session.errors import TrainJobError


class _ReadsItsOwn(OfTheJob):
    """Stands before Lightning's class, as `OfTheJob` does."""

    _is_loading = False

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """From this rank's path."""
        self._is_loading = True
        try:
            return super().load_checkpoint(checkpoint_path, *args, **kwargs)
        finally:
            self._is_loading = False

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What is broadcast while a checkpoint is loaded is its path alone."""
        return obj if self._is_loading else super().broadcast(obj, src)


class TrainJobFSDPStrategy(_ReadsItsOwn, pl.strategies.FSDPStrategy):  # type: ignore[misc]
    """`FSDPStrategy` over the ranks of the job, also on CPUs; takes the same arguments.

    `state_dict_type="sharded"` has each rank save and load its part alone, at another number of ranks too.
    """

    strategy_name = "trainjob_fsdp"

    def _setup_model(self, model: torch.nn.Module) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        is_wrapped = any(isinstance(each, FullyShardedDataParallel) for each in model.modules())
        if self.root_device.type == "cpu" and self._state_dict_type != "sharded":
            raise TrainJobError(
                "on CPUs torch's FullyShardedDataParallel crashes when it puts the whole state together: use "
                "TrainJobFSDPStrategy(state_dict_type='sharded'), or TrainJobModelParallelStrategy."
            )
        if self.root_device.type == "cpu" and not is_wrapped:
            # Lightning gives torch a device's number, which a CPU has none of: torch then looks for an accelerator.
            settings: Dict[str, Any] = {**self.kwargs}
            self.kwargs.pop("auto_wrap_policy", None)
            model = FullyShardedDataParallel(
                model,
                cpu_offload=self.cpu_offload,
                mixed_precision=self.mixed_precision_config,
                sharding_strategy=self.sharding_strategy,
                device_id=self.root_device,
                **settings,
            )
        return super()._setup_model(model)


class TrainJobModelParallelStrategy(_ReadsItsOwn, pl.strategies.ModelParallelStrategy):  # type: ignore[misc]
    """`ModelParallelStrategy` (FSDP2 and tensor parallel, in `configure_model`) over the ranks of the job; takes the
    same arguments.

    `"auto"`, of the two sizes: `tensor_parallel_size` is the ranks of a worker, or what `data_parallel_size` leaves;
    `data_parallel_size` is what `tensor_parallel_size` leaves. They are of the attempt's ranks.
    """

    strategy_name = "trainjob_model_parallel"
    _data_parallel_size: Any
    _tensor_parallel_size: Any

    def setup_environment(self) -> None:
        """With the sizes of this attempt, which Lightning would take from `devices` and `num_nodes`."""
        context = calls.get_context()
        if self._tensor_parallel_size == "auto":
            is_open = self._data_parallel_size == "auto"
            self._tensor_parallel_size = (
                context.local_world_size if is_open else max(1, context.world_size // self._data_parallel_size)
            )
        if self._data_parallel_size == "auto":
            self._data_parallel_size = max(1, context.world_size // self._tensor_parallel_size)
        super().setup_environment()

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """The ranks of a tensor group read the same rows."""
        rows = self.device_mesh["data_parallel"]
        return {"num_replicas": rows.size(), "rank": rows.get_local_rank()}


class TrainJobDeepSpeedStrategy(_ReadsItsOwn, pl.strategies.DeepSpeedStrategy):  # type: ignore[misc]
    """`DeepSpeedStrategy` over the ranks of the job; takes the same arguments, and needs deepspeed."""

    strategy_name = "trainjob_deepspeed"
