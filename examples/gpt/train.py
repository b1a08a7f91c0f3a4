"""A small GPT over a mesh of data x tensor parallel ranks, saved by all of them and resumed at any even number.

tj run examples/gpt/train.py --workers 4 --name gpt
"""

import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

import trainjob.torch

CONTEXT, WIDTH, HEAD, LETTERS, TENSOR = 32, 64, 16, 128, 2
SPLIT = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()) | dict.fromkeys(("out", "down"), RowwiseParallel())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = layer_norm(x, (WIDTH,))
        heads = (each(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(layer_norm(x, (WIDTH,)))))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
given = parser.parse_args()

trainjob.init_process_group()
torch.manual_seed(7)
device = trainjob.get_device()
mesh = dist.init_device_mesh(device.type, (dist.get_world_size() // TENSOR, TENSOR), mesh_dim_names=("data", "tensor"))
blocks = [Block() for _ in range(2)]
model = nn.Sequential(nn.Embedding(LETTERS, WIDTH), *blocks, nn.Flatten(0, 1), nn.Linear(WIDTH, LETTERS)).to(device)
for block in blocks:
    fully_shard(parallelize_module(block, mesh["tensor"], SPLIT), mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)  # its tensors lie on two meshes
text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))


def batch_of(step):
    starts = torch.randint(len(text) - CONTEXT, (8,), generator=torch.Generator().manual_seed(step))
    windows = [text[start : start + CONTEXT] for start in starts]  # of each, a data rank has its part
    return torch.stack(windows[mesh["data"].get_local_rank() :: mesh["data"].size()]).to(device)


def state_at(step):  # this rank's shards, under the same names on any mesh
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True), step=step)


state = state_at(0)
if checkpoint := trainjob.get_checkpoint():
    trainjob.torch.load_sharded(state, checkpoint)  # reads this rank's part, whatever the mesh that saved
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
for step in range(state["step"] + 1, given.steps + 1):
    windows = batch_of(step)
    loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % given.save_every == 0 or step == given.steps or trainjob.checkpoint_requested():
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        trainjob.report({"loss": mean.item()}, checkpoint=trainjob.torch.save_sharded(state_at(step)), step=step)
dist.destroy_process_group()
