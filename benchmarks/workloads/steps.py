"""A tiny DDP loop that notes each finished step as `rank pid attempt step time`; runs under TrainJob and under torchrun
alike.

Arguments: the file to note in. Stops after ten minutes at the latest, or when its launcher stops it.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REPORT_EVERY = 10


def main(notes: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, under_trainjob = dist.get_rank(), "TRAINJOB_ATTEMPT" in os.environ
    attempt = (
        int(os.environ["TRAINJOB_ATTEMPT"]) if under_trainjob else int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    )
    if under_trainjob:
        import trainjob
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    end = time.monotonic() + 600
    step = 0
    while time.monotonic() < end:
        step += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        os.write(file, f"{rank} {os.getpid()} {attempt} {step} {time.time():.6f}\n".encode())
        if under_trainjob and step % REPORT_EVERY == 0:
            trainjob.report({"step": step}, step=step)
        time.sleep(0.005)


if __name__ == "__main__":
    main(sys.argv[1])
