"""A small transformer that learns English letter by letter, sharded with FSDP2, saved by all ranks in parallel, resumed
at any number of ranks.

    tj run examples/fsdp2/train.py --workers 4 --name letters
    (Ctrl-C after some steps)
    tj run examples/fsdp2/train.py --workers 2 --name letters

What makes the state sharded and the number of ranks free is marked with (1) to (5). Needs torch alone.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import trainjob
from trainjob.torch import load_sharded, save_sharded

CONTEXT, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2
LETTERS = 128


class Block(nn.Module):
    """Attention to what came before, then a small network; both added to the input of shape (N, CONTEXT, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """From letters (N, CONTEXT) and those that follow them, (N, CONTEXT) too, the mean loss of foretelling these."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters, following):
        x = self.letters(letters) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


def load_text():
    """The text of Python's own help pages, as numbers below LETTERS."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(text.encode("ascii", "ignore")))


def batch_of(text, step, size, rank, world_size):
    """(letters, next letters) of this rank: (1) the whole batch depends on the step alone, so that any number of
    ranks sees the same data.
    """
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts[rank::world_size]])
    return windows[:, :-1], windows[:, 1:]


def state_of(model, optimizer, step):
    """What a checkpoint holds: (2) tensors are this rank's shards of the model and of the optimizer, under the same
    names at any number of ranks.
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def train(config):
    """Train until config["steps"]; every rank runs this."""
    context = trainjob.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)  # the ranks share this machine's cores
    torch.manual_seed(config["seed"])
    text = load_text()

    model = trainjob.prepare_model(
        Transformer(), parallel_strategy="fsdp"
    )  # (3) fully_shard for each block, then for the rest
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

    step = 0
    checkpoint = trainjob.get_checkpoint()
    if checkpoint:
        state = state_of(model, optimizer, step)
        load_sharded(state, checkpoint)  # (4) reads this rank's part, whatever the number of ranks that saved
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
    saved_by = checkpoint.world_size if checkpoint else None
    print(f"rank {rank} of {world_size}: from step {step}, saved by {saved_by} ranks", flush=True)

    while step < config["steps"]:
        letters, following = batch_of(text, step, config["batch_size"], rank, world_size)
        loss = model(letters, following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        trainjob.log({"loss": loss.item()}, step=step)

        if step % config["save_every"] == 0 or step == config["steps"]:
            mean = loss.detach() / world_size
            dist.all_reduce(mean)
            # (5) every rank writes its shards, and every rank reports what it wrote
            part = save_sharded(state_of(model, optimizer, step))
            trainjob.report({"loss": mean.item()}, checkpoint=part, step=step, total_steps=config["steps"])
            if rank == 0:
                print(f"step {step}: loss {mean.item():.4f}", flush=True)


def arguments():
    """The command line as a config for train()."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--batch-size", type=int, default=32, help="windows of all ranks together, per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=7)
    return vars(parser.parse_args())


if __name__ == "__main__":
    trainjob.init_process_group()  # as spec.rendezvous says
    train(arguments())
    dist.destroy_process_group()
