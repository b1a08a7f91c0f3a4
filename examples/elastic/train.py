"""A small model on scikit-learn's digits that trains at any number of workers: same batches, no step made twice.

    tj run examples/elastic/train.py --workers 1-3

What makes the size free is marked with (1) to (4).
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob import Checkpoint
from trainjob.torch import GlobalBatch


def train(config):
    """Train for config["epochs"] epochs; every rank runs this."""
    context = trainjob.get_context()
    rank, size, attempt = context.get_world_rank(), context.get_world_size(), context.get_attempt()
    torch.set_num_threads(1)  # the ranks share this machine's cores
    trainjob.enable_reproducibility(seed=7)

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    model = trainjob.prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # (1) a step is of 48 samples on all ranks together, however many these are
    batch = GlobalBatch(48, max_micro=config["max_micro"])
    # (2) each sample of an epoch once, also where the size changes within it
    loader = trainjob.prepare_data_loader(DataLoader(data, shuffle=True), global_batch=batch)

    step = epoch = 0
    checkpoint = trainjob.get_checkpoint()  # also brings back how far the loader had come
    if checkpoint:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch = state["step"], state["epoch"]
    if rank == 0:
        print(f"attempt {attempt} with {size} ranks: from step {step}", flush=True)

    def save():
        if rank:
            return None
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "epoch": epoch}
        return Checkpoint.from_dict(state)

    while epoch < config["epochs"]:
        for inputs, labels in loader:
            with batch.accumulating(model):
                loss = F.cross_entropy(model(inputs), labels)
                batch.scaled(loss).backward()
            if not batch.completes_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if trainjob.checkpoint_requested():  # (3) another size waits for a checkpoint: no step is lost
                trainjob.report({"loss": loss.item()}, checkpoint=save(), step=step, epoch=epoch)
            elif step % 10 == 0:  # (4) the answer to (3) comes with these
                trainjob.report({"loss": loss.item()}, step=step, epoch=epoch)
        epoch += 1
        trainjob.report({"loss": loss.item()}, checkpoint=save(), step=step, epoch=epoch)
    if rank == 0:
        print(f"trained {step} steps", flush=True)


def arguments():
    """The command line as a config for train()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--max-micro", type=int, default=24, help="samples that a rank computes at once")
    return vars(parser.parse_args())


if __name__ == "__main__":
    trainjob.init_process_group()
    train(arguments())
    torch.distributed.destroy_process_group()
