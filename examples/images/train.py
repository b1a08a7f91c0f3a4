"""Image classification: a residual network, mixed precision, DataLoader workers, augmentation, a checkpoint each epoch.

    tj run examples/images/train.py --workers 2 --name images
    tj run examples/images/train.py --gpus 4 --name images -- --epochs 20 --batch-size 256

The pictures are made on the spot (coloured stripes in ten directions), so that nothing is downloaded: put your own
dataset in the place of Stripes. What is particular to mixed precision and to workers is marked with (1) to (5).
"""

import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainjob
from trainjob import Checkpoint

CLASSES = 10


class Stripes(Dataset):
    """`count` pictures (3, 32, 32) with their class: the direction of the stripes. Item i is the same on every rank."""

    def __init__(self, count, seed, augment):
        self.count, self.seed, self.augment = count, seed, augment

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = int(torch.randint(CLASSES, (1,), generator=noise))
        angle, phase = math.pi * label / CLASSES, float(torch.rand(1, generator=noise)) * 6.28
        axis = torch.arange(32) / 3
        wave = torch.sin(axis[:, None] * math.sin(angle) + axis[None, :] * math.cos(angle) + phase)
        colour = torch.rand(3, 1, 1, generator=noise)
        picture = wave * colour + 0.3 * torch.randn(3, 32, 32, generator=noise)
        if self.augment and torch.rand(1) < 0.5:  # (1) drawn in the worker: enable_reproducibility() seeds it
            picture = picture.flip(0)  # other colours, the same stripes
        return picture, label


class Residual(nn.Module):
    """Two convolutions around a shortcut, then half the size; (N, before, H, W) to (N, after, H/2, W/2)."""

    def __init__(self, before, after):
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, after) for _ in range(2))
        self.shortcut = nn.Conv2d(before, after, 1)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.max_pool2d(F.relu(self.norms[1](self.second(y)) + self.shortcut(x)), 2)


def network(width):
    """Input (N, 3, 32, 32), output (N, CLASSES) logits."""
    body = Residual(3, width), Residual(width, 2 * width)
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))


@torch.inference_mode()
def accuracy_of(model, loader):
    """Share of the pictures that are named rightly, over all ranks."""
    model.eval()
    right = torch.zeros(2, device=trainjob.get_device())
    for pictures, labels in loader:
        right += torch.tensor([(model(pictures).argmax(1) == labels).sum(), len(labels)], device=right.device)
    model.train()
    if dist.is_initialized():
        dist.all_reduce(right)  # each rank has seen its own part
    return (right[0] / right[1]).item()


def train(config):
    """Train for config["epochs"] epochs; every rank runs this."""
    trainjob.enable_reproducibility(seed=7)
    device = trainjob.get_device()
    model = trainjob.prepare_model(network(config["width"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    # (2) bfloat16 needs no scaler. float16, for GPUs older than Ampere, does; disabled it does nothing.
    half = torch.float16 if config["float16"] else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=config["float16"])
    # (3) workers load beside the training; (4) drop_last keeps the number of batches equal on all ranks
    workers = {"num_workers": config["loader_workers"], "persistent_workers": config["loader_workers"] > 0}
    size = config["batch_size"]
    pictures = Stripes(config["pictures"], seed=1, augment=True)
    loader = trainjob.prepare_data_loader(DataLoader(pictures, size, shuffle=True, drop_last=True, **workers))
    # Not prepared for resuming: an evaluation begins at its first batch.
    tests = trainjob.prepare_data_loader(DataLoader(Stripes(160, seed=2, augment=False), 40), resume=False)

    first = 0
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "model.pt"), map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])  # (5) the scaler's factor belongs to the state
        first = saved["epoch"] + 1

    rank = trainjob.get_context().get_world_rank()
    for epoch in range(first, config["epochs"]):
        for batch, labels in loader:
            with torch.autocast(device.type, dtype=half):
                loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        accuracy = accuracy_of(model, tests)
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                }
                torch.save({**state, "epoch": epoch}, os.path.join(folder, "model.pt"))
            trainjob.report(
                {"loss": loss.item(), "accuracy": accuracy},
                checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None,
                step=epoch + 1,
                total_steps=config["epochs"],
                epoch=epoch,
            )


def arguments():
    """The command line as a config for train()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32, help="pictures per rank and step")
    parser.add_argument("--width", type=int, default=16, help="channels of the first block")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--loader-workers", type=int, default=2, help="DataLoader workers of each rank")
    parser.add_argument("--float16", action="store_true", help="float16 with a GradScaler instead of bfloat16")
    return vars(parser.parse_args())


if __name__ == "__main__":
    train(arguments())
