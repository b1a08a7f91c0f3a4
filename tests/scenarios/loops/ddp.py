"""A DDP loop on digits-like data under enable_reproducibility: reports in the middle of epochs, notes each step's loss
bit for bit.

ddp.py NOTES [--epochs N]
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from support import faults
from trainjob.torch import enable_reproducibility, prepare_data_loader, prepare_model

SAMPLES, BATCH, EVERY = 240, 10, 3


def digits() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 10, (SAMPLES,), generator=generator)
    images = torch.randn(SAMPLES, 1, 8, 8, generator=generator) + labels.reshape(-1, 1, 1, 1) / 5
    return TensorDataset(images, labels)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    enable_reproducibility(seed=11)
    rank = dist.get_rank()
    model = prepare_model(network(), parallel_strategy_kwargs={"bucket_cap_mb": 0.01})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = prepare_data_loader(DataLoader(digits(), batch_size=BATCH, shuffle=True))
    step, first = 0, 0
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, first = state["step"], state["epoch"]
    with open(os.path.join(args.notes, f"losses-{rank}"), "a", buffering=1) as losses:
        for epoch in range(first, args.epochs):
            for images, labels in loader:
                faults.point(faults.STEP, step)
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.write(f"{step} {loss.item().hex()}\n")
                step += 1
                if step % EVERY == 0:
                    save(model, optimizer, step, epoch)
    dist.destroy_process_group()


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, epoch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if dist.get_rank() == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch},
                os.path.join(folder, "state.pt"),
            )
            checkpoint = trainjob.Checkpoint.from_directory(folder)
        trainjob.report({"step": step}, checkpoint=checkpoint, step=step, epoch=epoch)


if __name__ == "__main__":
    main()
