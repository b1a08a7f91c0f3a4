"""Ranks that train apart are told, once; whoever averages, shards, evaluates or trains on rank 0 alone is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.agent_rig import Rig
from support.patience import HANG_S
from support.torch_release import without_gloo
from trainjob.session import apart

CASES = """
import json, sys, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trainjob.session import apart
from trainjob.session.context import TrainContext

rank, folder = int(sys.argv[1]), sys.argv[2]
context = TrainContext(rank, 2, rank, 2, 0, "job", "local", 1, 1, None, "")

def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        if case == "averaged by hand":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

def make():
    model = torch.nn.Linear(2, 2)
    if case == "DDP":
        return torch.nn.parallel.DistributedDataParallel(model)
    if case == "DDP in a group of its own":
        return torch.nn.parallel.DistributedDataParallel(model, process_group=dist.new_group())
    if case == "FSDP2":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model

found = {}
for case in sys.argv[3:]:
    if case != "without a process group":
        dist.init_process_group("gloo", init_method=f"file://{folder}/{case.replace(' ', '-')}", rank=rank, world_size=2)
    watch = apart.Watch()
    watch.look(context)
    model = make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watch.look(context, reports=True)
        for _ in range(3):
            if case == "evaluation":
                model(torch.ones(1, 2))
            elif case != "rank 0 alone" or rank == 0:
                steps(model)
            watch.look(context, reports=True)
    found[case] = sum("train apart" in str(one.message) for one in told)
    if dist.is_initialized():
        dist.barrier()  # the other may still be connecting
        dist.destroy_process_group()
print(json.dumps(found))
"""
EXPECTED = {
    "forgotten": 1,
    "without a process group": 1,
    "DDP": 0,
    "DDP in a group of its own": 0,
    "FSDP2": 0,
    "averaged by hand": 0,
    "evaluation": 0,
    "rank 0 alone": 0,
}


def last_line(rank: subprocess.Popen[str]) -> str:
    (line,) = without_gloo(rank.communicate(timeout=HANG_S)[0].splitlines())
    return line


def test_two_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CASES, str(rank), str(tmp_path), *EXPECTED], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    said = [json.loads(last_line(rank)) for rank in ranks]
    assert said == [dict.fromkeys(EXPECTED, 0), EXPECTED], "one warning, of rank 1"


REPORTS = """
import json, pathlib, warnings
import torch, trainjob
from torch.optim import SGD
model = torch.nn.Linear(2, 1)
optimizer = SGD(model.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(3):  # the first report finds torch, the second what was done with it, the third says nothing
        trainjob.report({"loss": 1.0})
        optimizer.step()
rank = trainjob.get_context().get_world_rank()
pathlib.Path(f"told-{rank}").write_text(json.dumps([str(one.message) for one in told]))
"""


def test_report_tells_it(tmp_path: Path) -> None:
    with Rig(tmp_path, script=REPORTS, agents=2) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        assert [json.loads((rig.work / f"told-{rank}").read_text()) for rank in (0, 1)] == [[], [apart.WORDS]]
