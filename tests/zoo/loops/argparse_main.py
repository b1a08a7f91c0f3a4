"""The tutorial: argparse, a main, the guard, a checkpoint every few steps in a TemporaryDirectory."""

import argparse
import json
import os
import tempfile

from tiny import Net

import trainjob


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--lr", type=float, default=float(os.environ.get("LEARNING_RATE", "0.05")))
    return parser.parse_args()


def main() -> None:
    args = parse()
    net = Net()
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            with open(os.path.join(folder, "net.json")) as file:
                net.load(json.load(file))
    for step in range(net.done, args.steps):
        loss = net.train_step(step)
        if (step + 1) % args.every and step + 1 < args.steps:
            trainjob.log({"loss": loss, "lr": args.lr}, step=step)
            continue
        with tempfile.TemporaryDirectory() as folder:
            if trainjob.get_context().get_world_rank() == 0:
                with open(os.path.join(folder, "net.json"), "w") as file:
                    json.dump(net.state(), file)
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step + 1)
    net.finish()


if __name__ == "__main__":
    main()
