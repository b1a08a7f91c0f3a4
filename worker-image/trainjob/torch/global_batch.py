"""`GlobalBatch`: the same global batch at any number of ranks, by accumulating gradients.

Made by user code, handed to `prepare_data_loader(..., global_batch=)`. `dealing.GlobalDeal` says what each batch is
within its step; here is what a loop does with that.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Optional, cast

from trainjob.torch.dealing import Dealing, GlobalDeal, Micro

if TYPE_CHECKING:
    import torch
    from torch.utils.data import BatchSampler, DataLoader


class GlobalBatch:
    """Steps of `size` samples on all ranks together, whatever their number: each rank takes its part of a step in
    batches of at most `max_micro` samples, and accumulates their gradients.

    `size`: samples of a step of the optimizer. `max_micro`: samples that a rank computes at once; absent: the loader's
    `batch_size`. With a loss that is a mean over its batch, and a model of prepare_model() (DDP or FSDP2, which average
    gradients over ranks), the gradient of a step is that of the mean over its samples, as one process would compute it:
    at any number of ranks, and in the short step at an epoch's end. Raises ValueError for what is no whole number
    above 0.

    ```python
    from torch.nn.functional import cross_entropy
    from trainjob import prepare_data_loader
    from trainjob.torch import GlobalBatch

    batch = GlobalBatch(256, max_micro=32)
    loader = prepare_data_loader(DataLoader(data, shuffle=True), global_batch=batch)
    for inputs, labels in loader:
        with batch.accumulating(model):
            loss = cross_entropy(model(inputs), labels)
            batch.scaled(loss).backward()
        if batch.completes_step:
            optimizer.step()
            optimizer.zero_grad()
    ```

    A checkpoint that is reported between two steps continues with the next step; one inside a step begins that step
    again. A rank that has no sample in a batch (fewer are left than ranks) gets one all the same, whose loss counts
    nothing.
    """

    def __init__(self, size: int, max_micro: Optional[int] = None) -> None:
        for name, value in (("size", size), ("max_micro", max_micro)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"GlobalBatch({name}={value!r}): a whole number of samples, 1 or more")
        self.size = size
        self._max_micro = max_micro
        self._now: Optional[Micro] = None

    @property
    def completes_step(self) -> bool:
        """This batch is the last one of its step: the optimizer is to step after it."""
        return self._batch.number == self._batch.count - 1

    @property
    def loss_scale(self) -> float:
        """What this batch's loss (a mean over its samples) is to be multiplied by."""
        return self._batch.scale

    @property
    def micro_batches(self) -> int:
        """Batches of the present step, on each rank alike."""
        return self._batch.count

    @property
    def samples(self) -> int:
        """Samples of the present step on all ranks: `size`, fewer in the last step of an epoch."""
        return self._batch.of

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss`, the mean over this batch, so that the step's gradient comes out right. A batch that does not count
        gives zero gradients, whatever its loss is (NaN too, if its gradients are finite).
        """
        return loss * self._batch.scale

    @contextmanager
    def accumulating(self, model: torch.nn.Module) -> Iterator[None]:
        """For forward and backward of one batch: ranks exchange gradients in the last one of a step only."""
        module: Any = model
        last = self.completes_step
        if hasattr(module, "set_requires_gradient_sync"):  # FSDP2
            module.set_requires_gradient_sync(last)
            yield
        elif not last and hasattr(module, "no_sync"):
            with module.no_sync():
                yield
        else:
            yield

    def check(self, loader: DataLoader[Any], dealt: bool) -> None:
        """Raises ValueError for a loader whose batches are not ours to cut. `prepare_data_loader` calls it."""
        from torch.utils.data import BatchSampler, IterableDataset

        way = "give the DataLoader a map-style dataset and batch_size, or accumulate in your own loop"
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(f"global_batch: an IterableDataset has no samples to deal out; {way}")
        if loader.batch_size is None and type(loader.batch_sampler) is not BatchSampler:
            raise ValueError(f"global_batch: a batch sampler of your own (or batch_size=None) cuts the batches; {way}")
        if not dealt:
            raise ValueError("global_batch: add_dist_sampler=False gives each rank all the data; leave one of them out")
        sampler = cast("BatchSampler", loader.batch_sampler).sampler
        if hasattr(sampler, "num_replicas"):
            raise ValueError("global_batch: a distributed sampler of your own divides the data; leave it out")
        given = cast("BatchSampler", loader.batch_sampler).batch_size
        if self._max_micro is not None and given not in (1, self._max_micro):
            raise ValueError(
                f"GlobalBatch(max_micro={self._max_micro}) and a DataLoader with batch_size={given} disagree: leave "
                "one of them out"
            )

    def batches_of(self, loader: DataLoader[Any]) -> BatchSampler:
        """The loader's own, in batches of at most `max_micro`. `prepare_data_loader` calls it."""
        from torch.utils.data import BatchSampler

        own = cast("BatchSampler", loader.batch_sampler)
        return BatchSampler(own.sampler, self._max_micro or own.batch_size, own.drop_last)

    def handed_out(self, dealing: Optional[Dealing], number: int, rank: int) -> None:
        """Batch `number` of this dealing goes to the loop. `prepare_data_loader` calls it."""
        assert isinstance(dealing, GlobalDeal), "the loader was checked"
        self._now = dealing.at(number, rank)

    @property
    def _batch(self) -> Micro:
        if self._now is None:
            raise RuntimeError(
                "GlobalBatch knows of no batch yet: iterate over the loader that "
                "prepare_data_loader(..., global_batch=this) returned"
            )
        return self._now
