"""A small convolutional network on scikit-learn's digits: distributed, with a checkpoint each epoch, resumed exactly.

    tj run examples/digits/train.py --workers 2
    tj run examples/digits/train.py --workers 2 -- --epochs 20

Everything that makes it distributed and restartable is marked with (1) to (6).
"""

import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob import Checkpoint

TEST_IMAGES = 360


class Net(nn.Sequential):
    """Two convolutions and two linear layers; input (N, 1, 8, 8), output (N, 10) logits."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * 16, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10),
        )  # fmt: skip


def load_data():
    """(training set, test set); the split is the same on every rank and in every attempt."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def accuracy_of(model, dataset):
    """Share of the images that the model names rightly."""
    images, labels = dataset.tensors
    model.eval()
    predicted = model(images.to(trainjob.get_device())).argmax(dim=1).cpu()
    return (predicted == labels).float().mean().item()


def train(config):
    """Train for config["epochs"] epochs; every rank runs this."""
    context = trainjob.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    torch.set_num_threads(1)  # the ranks share this machine's cores
    trainjob.enable_reproducibility(
        seed=config["seed"]
    )  # (1) a resumed run computes what an undisturbed one would have

    train_set, test_set = load_data()
    model = trainjob.prepare_model(Net())  # (2) device and DDP
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = DataLoader(train_set, batch_size=config["batch_size"], shuffle=True)
    loader = trainjob.prepare_data_loader(loader)  # (3) each rank gets its own part

    first_epoch = 0
    checkpoint = trainjob.get_checkpoint()  # (4) None on a first start
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"), map_location=trainjob.get_device(), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"] + 1
    print(
        f"rank {rank} of {context.get_world_size()} pid {os.getpid()} attempt {attempt}: from epoch {first_epoch}",
        flush=True,
    )

    total_steps = len(loader) * config["epochs"]
    for epoch in range(first_epoch, config["epochs"]):
        model.train()
        for batch, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trainjob.log({"loss": loss.item()}, step=epoch * len(loader) + batch)  # (5) no barrier: for every step

        accuracy, step = accuracy_of(model, test_set), (epoch + 1) * len(loader)
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, os.path.join(folder, "state.pt"))
            # (6) all ranks meet here; what is saved when this returns outlives every rank
            trainjob.report(
                {"loss": loss.item(), "accuracy": accuracy},
                checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None,
                step=step,
                total_steps=total_steps,
                epoch=epoch,
            )
        if rank == 0:
            print(
                f"epoch {epoch} attempt {attempt} step {step}: loss {loss.item():.4f} accuracy {accuracy:.4f}",
                flush=True,
            )


def arguments():
    """The command line as a config for train()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    return vars(parser.parse_args())


if __name__ == "__main__":
    trainjob.init_process_group()  # as spec.rendezvous says; under TorchTrainer it is up already
    train(arguments())
    torch.distributed.destroy_process_group()
