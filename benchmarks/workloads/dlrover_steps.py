"""The loop of steps.py under DLRover, with the same notes and its Flash Checkpoint; run by a Python that has it and
torch.

dlrover_steps.py NOTES STORAGE [WHAT IS IMPORTED BESIDE TORCH ...]
"""

import importlib
import os
import sys
import time

import torch
import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVE_EVERY = 50


def main(notes: str, storage: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    checkpointer = DdpCheckpointer(storage)
    step = first = int(checkpointer.load_checkpoint().get("step", 0))
    end = time.monotonic() + 600
    while time.monotonic() < end:
        step += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        os.write(file, f"{rank} {os.getpid()} {attempt} {step - first} {time.time():.6f}\n".encode())
        if step % SAVE_EVERY == 0:
            state = {"step": step, "model": model.state_dict()}
            checkpointer.save_checkpoint(step, state, storage_type=StorageType.DISK)
        time.sleep(0.005)


if __name__ == "__main__":
    for wish in sys.argv[3:]:
        name, _, attribute = wish.partition(":")
        module = importlib.import_module(name)
        if attribute:
            getattr(module, attribute)
    main(*sys.argv[1:3])
