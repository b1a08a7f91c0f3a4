"""`DataParallelTrainer`: a function on several ranks, a kill and a resume, and torch is imported by nobody."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support import spoken
from support.patience import HANG_S
from trainjob import DataParallelTrainer, TorchConfig, TorchTrainer

POISON = """
import os, sys
with open({told!r}, "a") as file:
    print(os.getpid(), sys.argv, file=file)
raise ImportError("torch was imported")
"""
MAIN = """
import os, signal, sys
import trainjob
from trainjob import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def loop(config):
    context = trainjob.get_context()
    checkpoint = trainjob.get_checkpoint()
    begun = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(begun + 1, config["steps"] + 1):
        if (context.rank, context.attempt, step) == (1, 1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}))
    return {"begun": begun, "attempt": context.attempt, "torch": "torch" in sys.modules, "ranks": context.world_size}

if __name__ == "__main__":
    trainer = DataParallelTrainer(
        loop,
        train_loop_config={"steps": 4},
        scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
        run_config=RunConfig(name="plain", storage_path=".", failure_config=FailureConfig(max_failures=1)),
    )
    print("came back:", trainer.fit().return_value)
    print("torch here:", "torch" in sys.modules)
"""


def said(here: Path, workers: int) -> str:
    poisoned = here / "poisoned" / "torch"
    poisoned.mkdir(parents=True)
    (poisoned / "__init__.py").write_text(POISON.format(told=str(here / "imported")))
    (here / "main.py").write_text(MAIN)
    roots = [entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))]
    path = os.pathsep.join([str(poisoned.parent), *roots])
    shown = spoken.said(["main.py", str(workers)], here, limit_s=HANG_S, PYTHONPATH=path)
    assert not (here / "imported").exists(), (here / "imported").read_text()
    assert "torch here: False" in shown, shown
    return shown


@pytest.mark.slow
def test_launcher_agents_and_ranks_do_without_torch_through_a_kill(tmp_path: Path) -> None:
    assert "came back: {'begun': 2, 'attempt': 2, 'torch': False, 'ranks': 2}" in said(tmp_path, 2)


def test_in_this_very_process_too(tmp_path: Path) -> None:
    assert "came back: {'begun': 0, 'attempt': 1, 'torch': False, 'ranks': 1}" in said(tmp_path, 0)


def test_it_has_no_process_group_to_configure() -> None:
    with pytest.raises(TypeError, match="DataParallelTrainer has no argument 'torch_config': use TorchTrainer"):
        DataParallelTrainer(print, torch_config=TorchConfig())  # type: ignore[call-arg]
    assert TorchTrainer(print, torch_config=TorchConfig(backend="gloo")) is not None
