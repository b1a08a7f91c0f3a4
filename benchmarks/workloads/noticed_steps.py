"""A loop with much state: each rank has MIB of it, saves it each SAVE_EVERY steps or when that is wished, and notes
each finished step as `rank pid attempt step time`; it goes on from where it was saved. Ends once FILE.enough exists.
Arguments: the file to note in, and MIB.
"""

import os
import sys
import time

import torch

import trainjob

SAVE_EVERY = 1_000
"""A minute and more: what a notice costs is what it does not save."""
STEP_S = 0.1
"""What an accelerator would take."""


def main(notes: str, mib: int) -> None:
    context = trainjob.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        state = {"weights": torch.rand(mib, 1 << 18), "step": 0}
    else:
        state = checkpoint.to_dict()
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while not trainjob.broadcast_from_rank_zero(os.path.exists(f"{notes}.enough")):
        state["step"] += 1
        state["weights"][:, 0] += 1.0
        time.sleep(STEP_S)
        step = state["step"]
        os.write(file, f"{rank} {os.getpid()} {attempt} {step} {time.time():.6f}\n".encode())
        saved = None
        if step % SAVE_EVERY == 0 or trainjob.checkpoint_requested():
            saved = trainjob.Checkpoint.from_dict(state)
        trainjob.report({"step": step}, checkpoint=saved, step=step)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
