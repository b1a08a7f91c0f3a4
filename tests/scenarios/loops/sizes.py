"""A DDP loop with a fixed global batch that ends with an error in the middle of an epoch; the next job goes on.

Notes the samples of each step (its position in the epoch's steps, the rank, the samples) and, on rank 0, the weights.

sizes.py NOTES [--stop-after STEPS]
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import trainjob
from trainjob.torch import GlobalBatch, enable_reproducibility, prepare_data_loader, prepare_model

SAMPLES, GLOBAL, MICRO, RATE = 233, 24, 5, 0.05


class Numbered(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([index / SAMPLES, (index % 13) / 13], dtype=torch.double)


def network() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.double))
    return model


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(inputs)[:, 0], inputs.sum(1).sin())


def weights(model: torch.nn.Module) -> list[float]:
    return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes")
    parser.add_argument("--stop-after", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    enable_reproducibility(7)
    rank = dist.get_rank()
    model = prepare_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batch = GlobalBatch(GLOBAL, MICRO)
    loader = prepare_data_loader(DataLoader(Numbered(), shuffle=True), global_batch=batch)
    step, done = 0, 0
    if checkpoint := trainjob.get_checkpoint():
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        step = state["step"]
    with open(os.path.join(args.notes, f"samples-{rank}"), "a", buffering=1) as notes:
        taken: list[int] = []
        for number, (indices, inputs) in enumerate(loader):
            if batch.loss_scale:
                taken += indices.tolist()
            with batch.accumulating(model):
                batch.scaled(loss_of(model, inputs)).backward()
            if not batch.completes_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step, done = step + 1, done + 1
            notes.write(f"{step} {dist.get_world_size()} {number} {' '.join(map(str, taken))}\n")
            taken = []
            if rank == 0:
                with open(os.path.join(args.notes, "weights"), "a") as file:
                    file.write(f"{step} {' '.join(value.hex() for value in weights(model))}\n")
            saved = trainjob.Checkpoint.from_dict({"model": model.state_dict(), "step": step}) if rank == 0 else None
            trainjob.report({"step": step}, checkpoint=saved, step=step, epoch=0)
            if done == args.stop_after:
                trainjob.barrier()
                sys.exit(3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
