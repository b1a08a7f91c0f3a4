"""A small network under DeepSpeed: its ZeRO stage says what of it is shared out among the ranks.

tj run examples/deepspeed/train.py --workers 2 --name zero
"""

import argparse
import json
import pathlib

import deepspeed
import torch
from torch import nn

import trainjob
import trainjob.deepspeed  # before deepspeed.initialize

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--stage", type=int, help="instead of what config.json says")
given = parser.parse_args()

config = json.loads(pathlib.Path(__file__).with_name("config.json").read_text())
if given.stage is not None:
    config["zero_optimization"]["stage"] = given.stage
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
context = trainjob.get_context()


def batch_of(step):
    """This rank's part of it, by the number of the step: the same batch after a restart, at any number of ranks."""
    drawn = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))[context.rank :: context.world_size]
    return drawn.to(engine.device), drawn.sin().sum(1, keepdim=True).to(engine.device)


state = trainjob.deepspeed.load_checkpoint(engine)
for step in range(1 if state is None else state["step"] + 1, given.steps + 1):
    inputs, wanted = batch_of(step)
    loss = nn.functional.mse_loss(engine(inputs), wanted)
    engine.backward(loss)
    engine.step()
    if step % given.save_every == 0 or step == given.steps or trainjob.checkpoint_requested():
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        trainjob.deepspeed.report(engine, {"loss": total.item() / context.world_size}, step=step)
