"""A DDP loop that saves each SAVE_EVERY steps and goes on from there, and notes each finished step as
`rank pid attempt step time`, the step counted from the run's beginning; runs under TrainJob and under torchrun alike.

Under TrainJob a checkpoint is what `report` takes; under torchrun rank 0 writes a file beside the notes, as a script
does that is written for it. Arguments: the file to note in; `never`: save nothing. Stops when its
launcher stops it.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVE_EVERY = 50
STEP_S = 0.02
"""What an accelerator would take."""
FILE = "state.pt"


def main(notes: Path, never: str = "") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, under_trainjob = dist.get_rank(), "TRAINJOB_ATTEMPT" in os.environ
    attempt = os.environ["TRAINJOB_ATTEMPT"] if under_trainjob else os.environ["TORCHELASTIC_RESTART_COUNT"]
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    state = restored() if under_trainjob else loaded(notes.with_name(FILE))
    step = 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    batch = torch.randn(32, 64)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        step += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)
        os.write(file, f"{rank} {os.getpid()} {attempt} {step} {time.time():.6f}\n".encode())
        if step % SAVE_EVERY == 0 and not never:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            if under_trainjob:
                report(state, rank)
            elif rank == 0:
                save(state, notes.with_name(FILE))


def restored() -> "dict | None":
    import trainjob

    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return loaded(Path(folder, FILE))


def report(state: dict, rank: int) -> None:
    import trainjob

    if rank != 0:
        trainjob.report({"step": state["step"]}, step=state["step"])
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder, FILE))
        checkpoint = trainjob.Checkpoint.from_directory(folder)
        trainjob.report({"step": state["step"]}, checkpoint=checkpoint, step=state["step"])


def loaded(path: Path) -> "dict | None":
    return torch.load(path, weights_only=True) if path.exists() else None


def save(state: dict, path: Path) -> None:
    """Whole or not at all: a rank may be killed in the middle."""
    new = path.with_suffix(".new")
    torch.save(state, new)
    new.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
