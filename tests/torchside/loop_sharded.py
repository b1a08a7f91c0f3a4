"""Ranks that save and load sharded states; run by test_sharded.py as a rank's script, STAGE says which part.

"save" runs under a FakeAgent with 4 ranks and reports; the others load, at other world sizes, from the folders that
were committed. Each rank leaves what it saw in `<stage>-<rank>.json`.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import trainjob
from trainjob.torch import ShardReader, ShardWriter, load_sharded, save_sharded

FILE_BYTES = 64 * 1024
"""Small, so that a small model fills many: pieces are then 1 KiB or more."""
STAGE, HERE = os.environ["STAGE"], Path(os.environ["HERE"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IDS = {"fsdp": "1-1-1", "tensor": "1-1-2", "async": "1-1-3", "rank 0 alone": "1-1-4", "plain": "1-1-5"}

State = dict[str, Any]
Seen = dict[str, Any]


class Counted(trainjob.Checkpoint):
    """Notes what is opened."""

    opened: dict[str, int]

    def open(self, path: str | os.PathLike[str]) -> BinaryIO:
        file = super().open(path)
        self.opened = {**getattr(self, "opened", {}), str(path): os.fstat(file.fileno()).st_size}
        return file


class Net(nn.Module):
    """Most of it divides by 8; one layer's 33 rows and the last one's 7 do not, so that some ranks hold less, or
    nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
        self.odd, self.last = nn.Linear(128, 33), nn.Linear(33, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.odd(self.down(torch.relu(self.up(x))))))
        return out


class Counter:
    """A Stateful object."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> State:
        return {"count": self.count}

    def load_state_dict(self, state: State) -> None:
        self.count = state["count"]


def sharded_training(seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        inputs = torch.randn(4, 128, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, full: bool = False) -> State:
    model_state, optimizer_state = get_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=full, cpu_offload=full)
    )
    return {"model": model_state, "optimizer": optimizer_state}


def leaves(state: Any, prefix: str = "") -> dict[str, Any]:
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else None
    if items is None:
        return {prefix: state}
    return {key: leaf for name, value in items for key, leaf in leaves(value, f"{prefix}/{name}").items()}


def differing(one: State, other: State) -> list[str]:
    """Leaves that are not the same, bit for bit."""
    left, right = leaves(one), leaves(other)
    same = [
        key
        for key in left
        if key in right
        and (torch.equal(left[key], right[key]) if isinstance(left[key], torch.Tensor) else left[key] == right[key])
    ]
    return sorted((set(left) | set(right)) - set(same))


def shard(whole: torch.Tensor) -> torch.Tensor:
    """This rank's part as FSDP cuts it; the last ranks may get nothing."""
    parts = whole.chunk(WORLD)
    return parts[RANK] if len(parts) > RANK else whole[:0]


def tensors(mesh: DeviceMesh | None, *placements: list[Placement], fill: bool = True) -> State:
    """A matrix for each of the placements (None: plain ones), an odd number of rows each, and values that say where
    they are.
    """
    found = {}
    for number, placed in enumerate(placements):
        rows, columns = 65 + number, 96
        whole = (
            torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) + number
            if fill
            else torch.zeros(rows, columns)
        )
        found[f"t{number}"] = distribute_tensor(whole, mesh, placed) if mesh is not None else whole
    return found


def whole(state: State) -> State:
    return {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()}


TWO_D: list[list[Placement]] = [
    [Shard(0), Shard(1)],
    [Replicate(), Shard(0)],
    [Shard(0), Replicate()],
    [Shard(0), Shard(0)],
    [Replicate(), Replicate()],
]


def save(seen: Seen) -> None:
    model, optimizer = sharded_training(seed=1, steps=3)
    state = {**state_of(model, optimizer), "counter": Counter(5), "note": {"name": "fsdp", "list": [1, torch.ones(2)]}}
    checkpoint = save_sharded(state, file_bytes=FILE_BYTES)
    seen["wrote"] = {name: os.path.getsize(os.path.join(checkpoint.path, name)) for name in checkpoint.files()}
    trainjob.report({}, checkpoint=checkpoint)
    seen["left"] = os.path.exists(checkpoint.path) and os.listdir(checkpoint.path)
    reference = state_of(model, optimizer, full=True)
    if RANK == 0:
        torch.save(reference, HERE / "full.pt")

    mesh = init_device_mesh("cpu", (2, 2))
    trainjob.report({}, checkpoint=save_sharded(tensors(mesh, *TWO_D), file_bytes=FILE_BYTES))

    writer = ShardWriter(file_bytes=FILE_BYTES)
    values = tensors(mesh, *TWO_D)
    group = dist.new_group(backend="gloo")
    future: Any = dcp.async_save(values, storage_writer=writer, process_group=group)
    for value in values.values():
        value.to_local().fill_(-1)  # training goes on
    future.result()
    trainjob.report({}, checkpoint=writer.checkpoint())

    part = save_sharded(tensors(mesh, *TWO_D))
    trainjob.report({}, checkpoint=part if RANK == 0 else None)

    # What all ranks have alike is written once, spread over them.
    copies = {"big": torch.arange(64 * 1024, dtype=torch.float32), "small": torch.ones(3)}
    checkpoint = save_sharded(copies, file_bytes=FILE_BYTES)
    seen["copies"] = sum(
        os.path.getsize(os.path.join(checkpoint.path, name)) for name in checkpoint.files() if name != ".metadata"
    )
    trainjob.report({}, checkpoint=checkpoint)
    seen["unpicklable on rank 2"] = refusal(lambda: save_sharded({f"value{RANK}": (lambda: 0) if RANK == 2 else 1}))


def load(seen: Seen) -> None:
    """FSDP's state at this world size, and the model's alone."""
    model, optimizer = sharded_training(seed=2, steps=0)
    state = {**state_of(model, optimizer), "counter": Counter(), "note": {"name": "", "list": [0, torch.zeros(2)]}}
    checkpoint = Counted(committed("fsdp"))
    load_sharded(state, checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    seen["opened"], seen["total"] = (
        checkpoint.opened,
        sum(os.path.getsize(os.path.join(checkpoint.path, name)) for name in checkpoint.files()),
    )
    seen["count"], seen["note"] = (
        state["counter"].count,
        [state["note"]["name"], state["note"]["list"][0], state["note"]["list"][1].tolist()],
    )
    loaded, expected = leaves(state_of(model, optimizer)), leaves(torch.load(HERE / "full.pt", weights_only=False))
    shards = {key: value.to_local() if isinstance(value, DTensor) else value for key, value in loaded.items()}
    seen["differing"] = differing(
        shards, {key: shard(value) if isinstance(loaded[key], DTensor) else value for key, value in expected.items()}
    )
    seen["leaves"] = len(shards)
    alone = Counted(committed("fsdp"))
    load_sharded({"model": state["model"]}, alone)
    seen["opened for the model"] = alone.opened


def reshard(seen: Seen) -> None:
    """Tensors of a 2-D mesh on another one, with other placements; and into plain ones."""
    mesh = init_device_mesh("cpu", (1, WORLD))
    others: list[list[Placement]] = [
        [Shard(0), Shard(1)],
        [Replicate(), Shard(1)],
        [Replicate(), Replicate()],
        [Shard(1), Shard(0)],
        [Replicate(), Shard(0)],
    ]
    for name in ("tensor", "async"):
        found = tensors(mesh, *others, fill=False)
        load_sharded(found, trainjob.Checkpoint(committed(name)))
        seen[name] = differing(whole(found), tensors(None, *others))
    plain = tensors(None, *others, fill=False)
    load_sharded(plain, trainjob.Checkpoint(committed("tensor")))
    seen["into plain tensors"] = differing(plain, tensors(None, *others))


def refuse(seen: Seen) -> None:
    """What does not fit is told to every rank, and all ranks go on together."""
    fsdp = trainjob.Checkpoint(committed("fsdp"))
    mesh = init_device_mesh("cpu", (WORLD,))
    seen["lacking"] = refusal(lambda: load_sharded({"model": {"up.weigth": torch.zeros(512, 128)}}, fsdp))
    seen["shape"] = refusal(
        lambda: load_sharded({"model": {"up.weight": distribute_tensor(torch.zeros(512, 64), mesh, [Shard(0)])}}, fsdp)
    )
    seen["on rank 1"] = refusal(
        lambda: load_sharded({"model": {"up.weight" if RANK == 0 else "nothing": torch.zeros(512, 128)}}, fsdp)
    )
    seen["rank 0 alone"] = refusal(
        lambda: load_sharded({"t0": torch.zeros(65, 96)}, trainjob.Checkpoint(committed("rank 0 alone")))
    )
    kept = {"model": {"new": torch.ones(2), "up.bias": torch.ones(512)}}
    load_sharded(kept, fsdp, strict=False)
    seen["not strict"] = [kept["model"]["new"].tolist(), bool((kept["model"]["up.bias"] == 1).any())]
    found = {"t0": torch.zeros(65, 96)}
    dcp.load(found, storage_reader=ShardReader(trainjob.Checkpoint(committed("tensor"))))
    seen["by torch's load"] = differing(found, {"t0": tensors(None, [Replicate()])["t0"]})
    try:
        dcp.load({"t9": torch.zeros(1)}, storage_reader=ShardReader(trainjob.Checkpoint(committed("tensor"))))
    except CheckpointException as error:
        seen["torch's own error"] = str(error)


def refusal(call: Any) -> str:
    try:
        call()
    except trainjob.CheckpointError as error:
        return str(error)
    return "went through"


def committed(name: str) -> str:
    return str(HERE / "job" / "checkpoints" / IDS[name])


def main() -> None:
    seen: Seen = {}
    dist.init_process_group("gloo", init_method=f"file://{HERE / STAGE}.store", rank=RANK, world_size=WORLD)
    for part in PARTS[STAGE]:
        part(seen)
        gc.collect()  # a refusal's traceback holds the frames below it, and with them what was saved
    (HERE / f"{STAGE}-{RANK}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


PARTS = {"save": [save], "load-2": [load, reshard, refuse], "load-8": [load]}

if __name__ == "__main__":
    main()
