"""HSDP by `prepare_model`: shards within a worker, replicas between workers; and what it saves, at another number of
ranks. As docs/frameworks.md says it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.spoken import said
from support.torch_release import needs_mean_of_shards

LIMIT_S = 200
LOOP = """
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

import trainjob
from trainjob.torch import load_sharded, save_sharded

trainjob.init_process_group()
context = trainjob.get_context()
within = context.local_world_size
mesh = init_device_mesh("cpu", (context.world_size // within, within), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = trainjob.prepare_model(
    nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
    parallel_strategy="fsdp",
    parallel_strategy_kwargs={"mesh": mesh},
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
weights, moments = get_state_dict(model, optimizer)
state, begin = {"model": weights, "optimizer": moments}, 1
if checkpoint := trainjob.get_checkpoint():
    load_sharded(state, checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    begin = checkpoint.step + 1
for step in range(begin, 7):
    every = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    mine = every[context.rank :: context.world_size]
    loss = nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.distributed.all_reduce(total := loss.detach() / context.world_size)
    weights, moments = get_state_dict(model, optimizer)
    placed = model[0].weight.placements
    print("step", step, f"{total.item():.5f}", *placed, flush=True)
    trainjob.report(
        {"loss": total.item()}, checkpoint=save_sharded({"model": weights, "optimizer": moments}), step=step
    )
"""


def trained(here: Path, workers: int, processes: int, *more: str) -> dict[int, float]:
    """The losses by step."""
    size = ["--workers", str(workers), "--processes-per-worker", str(processes), "--max-failures", "0"]
    words = ["run", "train.py", "--name", f"job-{workers}-{processes}", "--storage", ".", *size, *more]
    shown = said(["-m", "trainjob.cli.main", *words, "--prefork", "Never"], here, limit_s=LIMIT_S)
    found = re.findall(r"step (\d+) ([\d.]+) (\S+) (\S+)", shown)
    assert {(between, within) for _, _, between, within in found} == {("R", "S(0)")}, shown
    return {int(step): float(loss) for step, loss, *_ in found}


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S + 30)
def test_replicas_of_shards_train_as_one_rank_and_resume_at_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_mean_of_shards()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(LOOP)
    four = trained(tmp_path, 2, 2)
    assert sorted(four) == [1, 2, 3, 4, 5, 6]
    checkpoint = tmp_path / "default" / "job-2-2" / "checkpoints" / "1-1-3"
    two = trained(tmp_path, 1, 2, "--resume-from", str(checkpoint))
    assert sorted(two) == [4, 5, 6]
    assert two == pytest.approx({step: four[step] for step in two}, abs=1e-4)
    alone = trained(tmp_path, 1, 1)
    assert alone == pytest.approx(four, abs=1e-4)
