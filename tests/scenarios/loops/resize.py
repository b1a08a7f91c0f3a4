"""A loop that goes on at any size: rank 0 counts steps and saves them rarely, or when it is asked to.

    resize.py NOTES

Rank 0 appends `attempt step world_size` to NOTES/steps for each step that it makes. It ends once NOTES/enough exists.
"""

from __future__ import annotations

import argparse
import os
import time

import trainjob

RARELY = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes")
    args = parser.parse_args()
    context = trainjob.get_context()
    checkpoint = trainjob.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint is not None else 0
    while not trainjob.broadcast_from_rank_zero(os.path.exists(os.path.join(args.notes, "enough"))):
        time.sleep(0.02)
        step += 1
        if context.get_world_rank() == 0:
            with open(os.path.join(args.notes, "steps"), "a") as file:
                file.write(f"{context.get_attempt()} {step} {context.get_world_size()}\n")
        if step % RARELY == 0 or trainjob.checkpoint_requested():
            saved = trainjob.Checkpoint.from_dict({"step": step}) if context.get_world_rank() == 0 else None
            trainjob.report({"step": step}, checkpoint=saved, step=step)
        else:
            trainjob.report({"step": step}, step=step)


if __name__ == "__main__":
    main()
