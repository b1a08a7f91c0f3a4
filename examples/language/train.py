"""A language model: gradient accumulation, warm-up and a cosine schedule, clipping; resumed inside an epoch.

    tj run examples/language/train.py --workers 2 --name words
    tj run examples/language/train.py --gpus 4 --name words -- --steps 2000 --batch-size 32

A small transformer learns English letter by letter, from the text of Python's own help pages: nothing is downloaded.
What belongs to accumulation, schedule and resuming is marked with (1) to (5).
"""

import argparse
import contextlib
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainjob
from trainjob import Checkpoint

CONTEXT, LETTERS = 64, 128


class Windows(Dataset):
    """Pieces of the text: CONTEXT letters, and those that follow them."""

    def __init__(self):
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        self.text = torch.tensor(list(text.encode("ascii", "ignore")))

    def __len__(self):
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index):
        piece = self.text[index * CONTEXT : index * CONTEXT + CONTEXT + 1]
        return piece[:-1], piece[1:]


class Transformer(nn.Module):
    """From letters (N, CONTEXT) to the logits of the next ones (N, CONTEXT, LETTERS)."""

    def __init__(self, width, layers):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters):
        before = nn.Transformer.generate_square_subsequent_mask(letters.shape[1], device=letters.device)
        return self.head(self.layers(self.letters(letters) + self.places.weight, mask=before, is_causal=True))


def factor(step, warm_up, steps):
    """Of the learning rate: up in a line, then down along a cosine to a tenth."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def train(config):
    """Train for config["steps"] optimizer steps; every rank runs this."""
    trainjob.enable_reproducibility(seed=7)
    accumulate, steps = config["accumulate"], config["steps"]
    model = trainjob.prepare_model(Transformer(config["width"], config["layers"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, config["warm_up"], steps))
    loader = DataLoader(Windows(), config["batch_size"], shuffle=True, drop_last=True)
    loader = trainjob.prepare_data_loader(loader)

    step = epoch = 0
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"), map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])  # (1) the schedule's place belongs to the state
        step, epoch = saved["step"], saved["epoch"]  # (2) reported inside an epoch: the loader goes on inside it
        print(f"from step {step}", flush=True)

    rank, total, taken = trainjob.get_context().get_world_rank(), 0.0, 0
    while step < steps:
        for letters, following in loader:
            taken += 1
            last = taken % accumulate == 0
            # (3) DDP averages the gradients with the last small batch of a step; before, ranks do not speak
            apart = model.no_sync() if not last and hasattr(model, "no_sync") else contextlib.nullcontext()
            with apart:
                loss = F.cross_entropy(model(letters).flatten(0, 1), following.flatten()) / accumulate
                loss.backward()
            total += loss.item()
            if not last:
                continue
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # (4) once for a step, on the whole gradient
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            rate, loss_of_step, total = schedule.get_last_lr()[0], total, 0.0
            trainjob.log({"loss": loss_of_step, "lr": rate, "norm": norm.item()}, step=step)
            if step % config["save_every"] == 0 or step == steps:
                # (5) only between steps: a checkpoint in the middle of an accumulation would lose what was added up
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state = {**state, "schedule": schedule.state_dict(), "step": step, "epoch": epoch}
                with tempfile.TemporaryDirectory() as folder:
                    if rank == 0:
                        torch.save(state, os.path.join(folder, "state.pt"))
                    trainjob.report(
                        {"loss": loss_of_step, "perplexity": math.exp(min(loss_of_step, 20)), "lr": rate},
                        checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None,
                        step=step,
                        total_steps=steps,
                        epoch=epoch,
                    )
            if step == steps:
                return
        epoch += 1


def arguments():
    """The command line as a config for train()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=4, help="small batches of each step")
    parser.add_argument("--batch-size", type=int, default=8, help="pieces of text per rank and small batch")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--warm-up", type=int, default=20, help="steps until the learning rate is whole")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    return vars(parser.parse_args())


if __name__ == "__main__":
    train(arguments())
