"""A rank whose collectives are asked for while it captures a CUDA graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.patience import HANG_S

CAPTURES = """
import threading, torch, torch.distributed as dist, sys
from trainjob.session import flight_recorder
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mean = torch.ones(2, 4, device="cuda")
dist.all_reduce(mean)
flight_recorder.begin()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    twice = mean * 2
    asks = threading.Thread(target=flight_recorder.calls)
    asks.start()
    asks.join()
mean.fill_(4)
graph.replay()
print(twice.sum().item())
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no NVIDIA GPU here")
def test_a_graph_that_is_captured_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CAPTURES, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.splitlines() == ["64.0"], done.stdout + done.stderr
