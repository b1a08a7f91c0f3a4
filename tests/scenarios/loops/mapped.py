"""Saves a tensor, ends by SIGKILL, and loads it mapped: its pages come from the kept file as they are needed. The one
argument is the notes folder.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import torch

import trainjob

NOTES = Path(sys.argv[1])
checkpoint = trainjob.get_checkpoint()
rank = trainjob.get_context().get_world_rank()
if checkpoint is None:
    folder = tempfile.mkdtemp()
    torch.save({"weight": torch.arange(100_000.0)}, os.path.join(folder, "model.pt"))
    trainjob.report({"step": 1}, checkpoint=trainjob.Checkpoint.from_directory(folder) if rank == 0 else None)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    with checkpoint.open("model.pt") as file:
        state = torch.load(file.name, mmap=True)
    mapped = any(line.endswith("model.pt") for line in Path("/proc/self/maps").read_text().splitlines())
    state["weight"] += 1  # its own pages: what is kept stays as it is
    (NOTES / f"mapped-{rank}").write_text(f"{mapped} {state['weight'][:3].tolist()}")
    trainjob.report({"step": 2})
    again = torch.load(file.name, mmap=True)["weight"][:3].tolist()
    (NOTES / f"again-{rank}").write_text(f"{again}")
