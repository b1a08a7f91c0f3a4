"""Hugging Face Accelerate on several ranks: a loop of its own, and its `save_state` as the job's checkpoint.

    tj run examples/accelerate/train.py --workers 2 --name accelerated

`accelerate launch` works too, with one process a worker: as a manifest's command.
"""

import argparse
import os
import tempfile

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed

import trainjob


def train(config):
    set_seed(1)
    order = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(gradient_accumulation_steps=2, dataloader_config=order)
    rows = torch.randn(config["rows"], 8)
    data = torch.utils.data.TensorDataset(rows, rows.sin().sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)
    done = 0  # batches of this number of ranks
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder:
            accelerator.load_state(folder)
            done = torch.load(os.path.join(folder, "done.pt"))
    due, end = done + config["save_every"], config["epochs"] * len(loader)
    for epoch in range(done // len(loader), config["epochs"]):
        loader.set_epoch(epoch)
        for inputs, targets in accelerator.skip_first_batches(loader, done % len(loader)):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if accelerator.sync_gradients and (done >= due or done == end):  # half a step cannot be saved
                due = done + config["save_every"]
                report(accelerator, accelerator.reduce(loss.detach(), "mean").item(), done)


def report(accelerator, loss, done):
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)  # every rank: the random numbers of each are a file of their own
        if accelerator.is_main_process:
            torch.save(done, os.path.join(folder, "done.pt"))
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("--epochs", 5), ("--rows", 400), ("--save-every", 10)):
        parser.add_argument(name, type=int, default=default)
    train(vars(parser.parse_args()))
