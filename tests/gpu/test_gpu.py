"""Kill and restart on GPUs: forks find CUDA untouched, the process group is NCCL's, memory is given back before the next
attempt, states go on bit for bit. The same loop runs on the CPU too, so that it is no stranger to `make test`.

`make test-gpu` runs what is marked `gpu`, on all GPUs that there are; TRAINJOB_TEST_STATE_MIB (default 64) is how much
each rank saves and restores beside its model, 16384 for the figure of a large one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.patience import HANG_S
from support.torch_release import needs_mean_of_shards, needs_record_of_gloo, without_gloo

LOOP = Path(__file__).with_name("loop.py")
GPUS = torch.cuda.device_count()
STATE_MIB = os.environ.get("TRAINJOB_TEST_STATE_MIB", "64")
KEPT_MIB = 64.0
"""A driver's own memory may differ by so much from one attempt to the next."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(
        "device",
        [
            "cpu",
            pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no NVIDIA GPU here")]),
        ],
    ),
]


def ranks_on(device: str) -> int:
    """NCCL refuses two ranks on one GPU."""
    return GPUS if device == "cuda" else 2


def trained(folder: Path, device: str, mode: str, strike: int) -> dict[tuple[int, int], dict[str, Any]]:
    """What each rank noted at its end, by attempt and rank."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    size = ["--gpus", str(GPUS)] if device == "cuda" else ["--processes-per-worker", "2"]
    words = ["--workers", "1", *size, "--prefork", "Always", "--max-failures", "2", "--plain"]
    environment = {
        **os.environ,
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "NOTES": str(notes),
        "MODE": mode,
        "STRIKE": str(strike),
        "STATE_MIB": STATE_MIB if device == "cuda" else "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, "-m", "trainjob.cli", "run", str(LOOP), "--storage", str(folder / "storage"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = {}
    for path in notes.iterdir():
        attempt, rank = path.stem.split("-")
        found[int(attempt), int(rank)] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_rank_that_is_killed_comes_back_and_nothing_differs(tmp_path: Path, device: str, mode: str) -> None:
    if device == "cpu" and mode == "fsdp":
        needs_mean_of_shards()
    ranks = ranks_on(device)
    whole = trained(tmp_path / "whole", device, mode, strike=-1)
    struck = trained(tmp_path / "struck", device, mode, strike=ranks - 1)
    assert sorted(whole) == [(1, rank) for rank in range(ranks)]
    assert sorted(struck) == [(2, rank) for rank in range(ranks)]
    for rank in range(ranks):
        first, again = whole[1, rank], struck[2, rank]
        assert (first["from_step"], again["from_step"]) == (0, 8)
        assert again["digest"] == first["digest"]
        assert first["untouched"] and again["untouched"], "nothing has used CUDA before the script"
        assert first["device"] == again["device"] == device
        assert again["backend"] == ("nccl" if device == "cuda" else "gloo")
        assert again["free_mib"] >= first["free_mib"] - KEPT_MIB, "the attempt before has given its memory back"
        print(f"rank {rank}: {STATE_MIB} MiB restored in {again['restored_s']:.2f} s")


RECORDS = """
import sys, torch, torch.distributed as dist
from trainjob.session import flight_recorder
device, store = sys.argv[1:]
dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method="file://" + store, rank=0, world_size=1)
for _ in range(3):
    mean = torch.ones(2, 4, device=device)
    dist.all_reduce(mean)
print(mean.sum().item())
flight_recorder.begin()
last = flight_recorder.calls()[-1]
print(last.group, last.number, last.what, last.sizes)
"""


def test_torchs_record_of_collectives_is_read(tmp_path: Path, device: str) -> None:
    if device == "cpu":
        needs_record_of_gloo()
    command = [sys.executable, "-c", RECORDS, device, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert without_gloo(done.stdout.splitlines()) == ["8.0", "default_pg 3 all_reduce [2, 4] float"], (
        done.stdout + done.stderr
    )
