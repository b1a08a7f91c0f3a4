"""A class as the training loop, own DistributedSampler, manual all_reduce, no checkpoints at all."""

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainjob.compat import ray


class Experiment:
    def __init__(self):
        self.losses = []

    def __call__(self, config):
        context = ray.train.get_context()
        dataset = TensorDataset(torch.arange(20, dtype=torch.float32))
        sampler = DistributedSampler(
            dataset, num_replicas=context.get_world_size(), rank=context.get_world_rank(), shuffle=False
        )
        device = ray.train.torch.get_device()
        for epoch in range(config["epochs"]):
            sampler.set_epoch(epoch)
            total = torch.zeros(1, device=device)
            for (batch,) in DataLoader(dataset, batch_size=5, sampler=sampler):
                total += batch.to(device).sum()
            dist.all_reduce(total)
            self.losses.append(total.item())
            ray.train.report(
                {"total": total.item(), "losses": len(self.losses), "local_rank": context.get_local_rank()}
            )


if __name__ == "__main__":
    trainer = ray.train.torch.TorchTrainer(
        Experiment,
        train_loop_config={"epochs": 2},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(storage_path=sys.argv[1]),
    )
    result = trainer.fit()
    assert result.metrics == {"total": 190.0, "losses": 2, "local_rank": 0}
    assert result.checkpoint is None
