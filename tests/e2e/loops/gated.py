"""A training loop without torch for end-to-end tests; it waits at gates until the test opens them.

    gated.py FOLDER [--steps N] [--gates S,S,...] [--mode ASYNC|SYNC] [--pause S] [--raise RANK:STEP] [--exit RANK:STEP]

Before step S of a gate all ranks wait for the file FOLDER/go-<S>. Each rank notes what report() acknowledged in
FOLDER/acknowledged-<rank>, and says at its start from where it goes on and what had been acknowledged to it before.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import trainjob


def resumed(rank: int) -> int:
    """The step to begin with; each rank has a file of its own in a checkpoint, which new ranks of a larger world
    lack.
    """
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        own = os.path.join(folder, f"part-{rank}")
        with open(own if os.path.exists(own) else os.path.join(folder, "part-0")) as file:
            return int(file.read().split()[0]) + 1


def last_acknowledged(path: str) -> int:
    """The highest step that was ever acknowledged to this rank, in this run of the name; -1: none."""
    if not os.path.exists(path):
        return -1
    with open(path) as file:
        return max((int(line) for line in file if line.endswith("\n")), default=-1)


def report(args: argparse.Namespace, rank: int, step: int) -> None:
    """Save and report; returns once the step is acknowledged."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, f"part-{rank}"), "w") as file:
            file.write(f"{step} " + "x" * 10_000)
        checkpoint = trainjob.Checkpoint.from_directory(folder)
        trainjob.report(
            {"loss": 1 / (step + 1)},
            checkpoint=checkpoint,
            checkpoint_upload_mode=args.mode,
            step=step + 1,
            total_steps=args.steps,
        )


def trouble(args: argparse.Namespace, rank: int, step: int) -> None:
    """Break as the command line says."""
    if f"{rank}:{step}" == args.raise_at:
        raise ValueError(f"the data of step {step} cannot be read")
    if f"{rank}:{step}" == args.exit_at:
        os._exit(7)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gates", default="")
    parser.add_argument("--mode", default="ASYNC")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes")
    parser.add_argument("--raise", dest="raise_at", default="")
    parser.add_argument("--exit", dest="exit_at", default="")
    args = parser.parse_args()
    context = trainjob.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    notes = os.path.join(args.folder, f"acknowledged-{rank}")
    gates = {int(gate) for gate in args.gates.split(",") if gate}
    start = resumed(rank)
    print(
        f"rank {rank} of {context.get_world_size()} attempt {attempt}: from step {start}, acknowledged "
        f"{last_acknowledged(notes)}",
        flush=True,
    )
    for step in range(start, args.steps):
        while step in gates and not os.path.exists(os.path.join(args.folder, f"go-{step}")):
            time.sleep(0.02)
        if rank == 0:
            print(f"attempt {attempt} begins step {step} at {time.time():.3f}", flush=True)
        time.sleep(args.pause)
        trouble(args, rank, step)
        report(args, rank, step)
        with open(notes, "a") as file:
            file.write(f"{step}\n")
        if rank == 0:
            print(f"attempt {attempt} step {step} at {time.time():.3f}", flush=True)


if __name__ == "__main__":
    main()
