"""A deterministic training loop that draws from every generator; run by test_exact.py as a rank's script.

Prints one line per step of rank 0: NAME, global step and the bits of the loss and of the weights. MODE "plain" leaves
DDP's buckets to DDP. The gradients fill several of a ring's segments, so that their order in the bucket matters.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainjob
from trainjob.torch import reproducible

EPOCHS, EVERY = 2, 3


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        noise = random.random() + float(np.random.rand()) + torch.rand(32)
        return torch.randn(32, generator=generator) + noise, index % 10


class Net(nn.Module):
    """Declared in another order than gradients become ready: DDP's rebuild moves every bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(256, 10)
        self.second = nn.Linear(256, 256)
        self.first = nn.Linear(32, 256)
        self.third = nn.Linear(256, 256)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.relu(self.second(torch.relu(self.first(x)))))
        out: torch.Tensor = self.last(torch.relu(self.third(x)))
        return out


def main() -> None:
    rank = trainjob.get_context().get_world_rank()
    dist.init_process_group(
        "gloo",
        init_method="file://" + os.environ["STORE"],
        rank=rank,
        world_size=trainjob.get_context().get_world_size(),
    )
    trainjob.enable_reproducibility(3)
    net = Net()
    if os.environ["MODE"] == "plain":
        model: nn.Module = nn.parallel.DistributedDataParallel(net)
    else:
        model = trainjob.prepare_model(net)
    loader = trainjob.prepare_data_loader(
        DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, start = 0, 0
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is not None:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, start = state["step"], state["epoch"]
        torch.rand(7)  # set-up may draw as it likes
    for epoch in range(start, EPOCHS):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                weights = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
                print(
                    f"step {os.environ['NAME']} {step} {loss.item().hex()} {weights.hex()} {random.random()} "
                    f"{np.random.rand()}",
                    flush=True,
                )
            else:
                random.random(), np.random.rand()
            if step % EVERY == 0:
                _save(model, optimizer, step, epoch)
        _save(model, optimizer, step, epoch + 1)
    assert reproducible.seed() == 3
    dist.destroy_process_group()


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, epoch: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch}
    rank = trainjob.get_context().get_world_rank()
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict(state) if rank == 0 else None, step=step)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
