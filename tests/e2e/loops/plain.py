"""A script that knows nothing of TrainJob: it joins its process group from the environment, and keeps its own
checkpoint.

    plain.py FOLDER [--steps N] [--fail-at STEP]

Rank 1 fails once, before --fail-at; FOLDER/step is the checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--fail-at", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    saved, failed = os.path.join(args.folder, "step"), os.path.join(args.folder, "failed")
    start = torch.tensor([0])
    if rank == 0 and os.path.exists(saved):
        with open(saved) as file:
            start[0] = int(file.read())
    dist.broadcast(start, 0)
    print(f"rank {rank} of {world} local rank {os.environ['LOCAL_RANK']}: from step {start.item()}", flush=True)
    for step in range(int(start.item()), args.steps):
        if rank == 1 and step == args.fail_at and not os.path.exists(failed):
            open(failed, "w").close()
            sys.exit("this failure is on purpose")
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        assert total.item() == world * (world + 1) / 2
        if rank == 0:
            with open(saved + ".new", "w") as file:
                file.write(str(step + 1))
            os.replace(saved + ".new", saved)
            print(f"step {step} done", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
