"""One epoch in global batches, with DDP and with FSDP2, against one process; run by test_global_batch.py as a rank's
script. 37 samples in steps of 12 leave one sample for three ranks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from trainjob.torch import GlobalBatch, prepare_data_loader

COUNT, SIZE, MICRO = 37, 12, 2
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs)[:, 0], inputs.sum(1).sin())


def alone(data: torch.Tensor) -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, COUNT, SIZE):
        optimizer.zero_grad()
        loss_of(model, data[start : start + SIZE]).backward()
        optimizer.step()
    return model


def together(model: nn.Module, data: torch.Tensor) -> nn.Module:
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), GlobalBatch(SIZE, MICRO)
    for (inputs,) in prepare_data_loader(DataLoader(TensorDataset(data)), global_batch=batch):
        with batch.accumulating(model):
            batch.scaled(loss_of(model, inputs)).backward()
        if batch.completes_step:
            optimizer.step()
            optimizer.zero_grad()
    return model


def sharded() -> nn.Module:
    model, mesh = network(), init_device_mesh("cpu", (WORLD,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
    data = torch.randn(COUNT, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    one = [parameter.detach() for parameter in alone(data).parameters()]
    for model in (nn.parallel.DistributedDataParallel(network()), sharded()):
        found: list[Any] = list(together(model, data).parameters())
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in found]
        assert all(torch.allclose(mine, theirs, rtol=1e-10) for mine, theirs in zip(whole, one, strict=True))
    Path(os.environ["STORE"]).with_name(f"done-{RANK}").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
