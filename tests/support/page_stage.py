"""Runs the python blocks of pages that are parts of a training loop: all in one process.

`python -m support.page_stage FOLDER` reads `[[section, place, code], ...]` as JSON from standard input and writes
`[[place, error or null], ...]` as its last line. The blocks of a section run one after the other inside a rank (the
process itself, num_workers=0) whose newest checkpoint has a file of each kind that pages name; around them stands what
such a loop usually has: `Net`, `data`, `model`, `optimizer`, `loader`, `step`, `epoch`, `metrics`, `result`, ... A
block with a trainer runs afterwards, as the script that starts a job.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import traceback
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob import Checkpoint, Result, RunConfig, ScalingConfig, TorchTrainer

EPOCH = 18
STAGE = "stage"
"""The name of the run whose rank the blocks are in, and whose results they read."""
TRAINERS = tuple(f"{name}(" for name in trainjob.__all__ if name.endswith("Trainer"))
"""A block with one of these starts a job."""


class Net(torch.nn.Sequential):
    """Input (N, 10), output (N, 4) logits."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(10, 4))


def named() -> dict[str, Any]:
    """What a training loop has around such a block."""
    data = TensorDataset(torch.randn(64, 10), torch.randint(0, 4, (64,)))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = data[:8]
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": EPOCH, "step": EPOCH}
    folder = tempfile.mkdtemp(dir=".")
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is not None:
        folder = checkpoint.to_directory(os.path.join(folder, "saved"))
    return {
        "__name__": "__main__",
        "Checkpoint": Checkpoint,
        "DataLoader": DataLoader,
        "Net": Net,
        "checkpoint": checkpoint,
        "data": data,
        "epoch": EPOCH,
        "folder": folder,
        "images": images,
        "labels": labels,
        "loader": DataLoader(data, batch_size=32, shuffle=True),
        "loss": loss,
        "metrics": {"loss": loss.item()},
        "model": model,
        "optimizer": optimizer,
        "os": os,
        "result": Result.from_path(os.path.join(os.getcwd(), STAGE)),
        "schedule": torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(model.parameters())),
        "state": state,
        "step": EPOCH,
        "tempfile": tempfile,
        "torch": torch,
        "trainjob": trainjob,
    }


def saved(folder: str) -> str:
    """A checkpoint's folder with a file of each kind that the pages name."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    os.makedirs(os.path.join(folder, "optimizer"))
    torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
    with open(os.path.join(folder, "checkpoint.pkl"), "wb") as file:
        pickle.dump({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": EPOCH}, file)
    for name in ("model.safetensors", "optimizer/0.bin"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(bytes(64))
    shards, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": shards, "optimizer": of_optimizer, "step": EPOCH}, checkpoint_id=folder)
    return folder


def tried(code: str, place: str, names: dict[str, Any]) -> str | None:
    """What went wrong, as Python says it."""
    try:
        exec(compile(code, place, "exec"), names)
    except BaseException:  # whatever a page's code ends with is what the test tells
        return traceback.format_exc()
    return None


def main(folder: str) -> None:
    blocks: list[tuple[str, str, str]] = [(section, place, code) for section, place, code in json.load(sys.stdin)]
    os.chdir(folder)
    results: list[tuple[str, str | None]] = []
    sections: dict[str, list[tuple[str, str]]] = {}
    for section, place, code in blocks:
        if not any(trainer in code for trainer in TRAINERS):
            sections.setdefault(section, []).append((place, code))

    def inside() -> None:
        trainjob.init_process_group()
        made = saved(os.path.join(folder, "saved"))
        for parts in sections.values():
            names: dict[str, Any] = {}
            for place, code in parts:
                # Before each of them: one that reports a checkpoint of its own is followed by one that reads.
                trainjob.report({"loss": 1.0}, checkpoint=Checkpoint.from_directory(made))
                names = names or named()
                results.append((place, tried(code, place, names)))
        torch.distributed.destroy_process_group()

    setting = RunConfig(name=STAGE, storage_path=folder, verbose=0)
    TorchTrainer(inside, scaling_config=ScalingConfig(num_workers=0), run_config=setting).fit()
    public = {"trainjob": trainjob, **{name: getattr(trainjob, name) for name in trainjob.__all__}}
    for _, place, code in blocks:
        if any(trainer in code for trainer in TRAINERS):
            results.append((place, tried(code, place, {**public, "__name__": "__main__", "train": _train})))
    sys.stdout.write("\n" + json.dumps(results) + "\n")


def _train(config: dict[str, Any]) -> None:
    import trainjob

    trainjob.report({"loss": config.get("lr", 1.0)}, checkpoint=trainjob.Checkpoint.from_dict(dict(config)))


if __name__ == "__main__":
    main(sys.argv[1])
