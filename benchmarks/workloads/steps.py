"""A tiny DDP loop that notes each finished step as `rank pid attempt step time`; runs under TrainJob and under torchrun
alike.

Arguments: the file to note in, and what is imported beside torch (`pandas`, `transformers:BertModel`). Stops
after ten minutes at the latest, or when its launcher stops it; raises at SIGUSR2.
"""

import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REPORT_EVERY = 10
SAVE_EVERY = int(os.environ.get("STEPS_SAVE_EVERY", "50"))
"""A job that makes no progress between failures is given up."""


def struck(number: int, frame: object) -> None:
    raise RuntimeError("struck")


def main(notes: str) -> None:
    signal.signal(signal.SIGUSR2, struck)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, under_trainjob = dist.get_rank(), "TRAINJOB_ATTEMPT" in os.environ
    attempt = (
        int(os.environ["TRAINJOB_ATTEMPT"]) if under_trainjob else int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    )
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    end = time.monotonic() + 600
    step = first = resumed() if under_trainjob else 0
    while time.monotonic() < end:
        step += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        os.write(file, f"{rank} {os.getpid()} {attempt} {step - first} {time.time():.6f}\n".encode())
        if under_trainjob and step % REPORT_EVERY == 0:
            report(step, saves=step % SAVE_EVERY == 0)
        time.sleep(0.005)


def resumed() -> int:
    """The step that the checkpoint was saved at; 0: there is none."""
    import trainjob

    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "step").read_text())


def report(step: int, saves: bool) -> None:
    import trainjob

    if not saves:
        trainjob.report({"step": step}, step=step)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step)


if __name__ == "__main__":
    for wish in sys.argv[2:]:
        name, _, attribute = wish.partition(":")
        module = importlib.import_module(name)
        if attribute:
            getattr(module, attribute)
    main(sys.argv[1])
