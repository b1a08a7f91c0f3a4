"""Trains a small model on DEVICE, ends rank STRIKE by SIGKILL in its first attempt, and notes what `test_gpu.py` looks
at: a JSON file for each rank and attempt in NOTES.

MODE `ddp`: rank 0 saves the whole state; `fsdp`: each rank its shards. STATE_MIB: bytes beside the model, so that a
restore has something to read.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import trainjob
from trainjob.torch import load_sharded, save_sharded

UNTOUCHED = not torch.cuda.is_initialized()
"""By whatever ran in this process before the script."""
NOTES, MODE, STRIKE = Path(os.environ["NOTES"]), os.environ["MODE"], int(os.environ["STRIKE"])
STATE_MIB = int(os.environ.get("STATE_MIB", "1"))
STEPS, SAVE_EVERY, STRUCK_AT = 20, 4, 10
FILE = "state.pt"

State = dict[str, Any]


def free_mib(device: torch.device) -> float:
    """Of the device, as its driver tells; 0 where it is no GPU."""
    return torch.cuda.mem_get_info(device)[0] / 2**20 if device.type == "cuda" else 0.0


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, bulk: torch.Tensor, step: int) -> State:
    """All that goes on after a restart."""
    mine, optimizers = get_state_dict(model, optimizer)
    return {"model": mine, "optimizer": optimizers, "bulk": bulk, "step": step}


def saved(state: State, rank: int) -> trainjob.Checkpoint | None:
    """What this rank reports of it."""
    if MODE == "fsdp":
        return save_sharded(state)
    if rank != 0:
        return None
    folder = tempfile.mkdtemp()
    torch.save(state, Path(folder, FILE))
    return trainjob.Checkpoint.from_directory(folder)


def restored(state: State, checkpoint: trainjob.Checkpoint, device: torch.device) -> State:
    """`state` with what was saved."""
    if MODE == "fsdp":
        load_sharded(state, checkpoint)
        return state
    with checkpoint.as_directory() as folder:
        found: State = torch.load(Path(folder, FILE), map_location=device, weights_only=True)
    return found


def digest(state: State) -> str:
    """Of this rank's part of the model."""
    whole = hashlib.sha256()
    for _, tensor in sorted(state["model"].items()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        whole.update(local.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()


def main() -> None:
    """One rank."""
    context = trainjob.get_context()
    rank, attempt = context.get_world_rank(), int(os.environ["TRAINJOB_ATTEMPT"])
    device = trainjob.get_device()
    notes: dict[str, Any] = {"untouched": UNTOUCHED, "device": device.type, "free_mib": free_mib(device)}
    trainjob.init_process_group()
    notes["backend"] = dist.get_backend()
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    model = trainjob.prepare_model(net, parallel_strategy=MODE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bulk = torch.full((STATE_MIB * 2**18,), float(rank), device=device)
    begun, step = time.monotonic(), 0
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is not None:
        state = restored(state_of(model, optimizer, bulk, 0), checkpoint, device)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
    notes |= {"from_step": step, "restored_s": time.monotonic() - begun}
    while step < STEPS:
        batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        step += 1
        if step == STRUCK_AT and attempt == 1 and rank == STRIKE:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE_EVERY == 0:
            trainjob.report({"step": step}, checkpoint=saved(state_of(model, optimizer, bulk, step), rank), step=step)
    notes["digest"] = digest(state_of(model, optimizer, bulk, step))
    (NOTES / f"{attempt}-{rank}.json").write_text(json.dumps(notes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
