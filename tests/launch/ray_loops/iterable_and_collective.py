"""Iterable data, prepare_model without DDP, barrier and broadcast from ray.train.collective, evaluation on rank 0
alone.
"""

import sys

import torch
from torch.utils.data import DataLoader, IterableDataset

from trainjob.compat import ray


class Numbers(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        return iter(torch.arange(self.rank, 16, self.world_size, dtype=torch.float32))


def train_func(config):
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    experiment = ray.train.collective.broadcast_from_rank_zero({"seed": 41 + rank})
    assert experiment == {"seed": 41}
    loader = ray.train.torch.prepare_data_loader(
        DataLoader(Numbers(rank, world_size), batch_size=4), add_dist_sampler=False
    )
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy=None)
    seen = 0
    for batch in loader:
        model(batch.unsqueeze(1))
        seen += len(batch)
    ray.train.collective.barrier()
    ray.train.report({"seen": seen, "name": context.get_experiment_name()})
    if rank == 0:
        print("evaluating alone")


if __name__ == "__main__":
    result = ray.train.torch.TorchTrainer(
        train_func,
        scaling_config=ray.train.ScalingConfig(
            num_workers=2, trainer_resources={"CPU": 1}, placement_strategy="SPREAD"
        ),
        run_config=ray.train.RunConfig(name="iterable", storage_path=sys.argv[1]),
    ).fit()
    assert result.metrics == {"seen": 8, "name": "iterable"}
