"""Sharded saving: every rank puts its own file and one of a common name into the checkpoint of the same report."""

import os
import sys
import tempfile

import torch

import trainjob as train  # was: from ray import train
from trainjob import Checkpoint, RunConfig, ScalingConfig
from trainjob.torch import TorchTrainer


def train_func(config):
    rank = train.get_context().get_world_rank()
    for step in range(3):
        with tempfile.TemporaryDirectory() as tmpdir:
            torch.save({"rank": rank, "step": step}, os.path.join(tmpdir, f"model-rank={rank}.pt"))
            torch.save({"step": step}, os.path.join(tmpdir, "shared.pt"))
            checkpoint = Checkpoint.from_directory(tmpdir)
            train.report({"step": step}, checkpoint=checkpoint)


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_func,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1]),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as directory:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
        assert names == ["model-rank=0.pt", "model-rank=1.pt", "shared.pt"], names
        assert torch.load(os.path.join(directory, "model-rank=1.pt")) == {"rank": 1, "step": 2}
    copy = result.checkpoint.to_directory()
    assert os.path.exists(os.path.join(copy, "shared.pt"))
    import shutil

    shutil.rmtree(copy)
