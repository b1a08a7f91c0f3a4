"""AIR style: dict checkpoints through `session`, resume from to_dict()."""

import sys

import torch

from trainjob import (
    Checkpoint,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    get_checkpoint,
    get_context,
    report,
)  # was: from ray.air import session, ...
from trainjob.torch import TorchTrainer  # was: from ray.train.torch import TorchTrainer


def train_loop_per_worker(config):
    weights = torch.zeros(4)
    start = 0
    checkpoint = get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        weights, start = state["weights"], state["epoch"] + 1
    for epoch in range(start, config["epochs"]):
        if epoch == 2 and checkpoint is None and get_context().get_world_rank() == 1:
            raise RuntimeError("a flaky disk")
        weights = weights + config["lr"]
        report(
            {"epoch": epoch, "total": weights.sum().item()},
            checkpoint=Checkpoint.from_dict({"weights": weights, "epoch": epoch}),
        )


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_loop_per_worker=train_loop_per_worker,
        train_loop_config={"lr": 0.5, "epochs": 4},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="dict_run", storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=1)),
    )
    result = trainer.fit()
    assert result.metrics == {"epoch": 3, "total": 8.0}
    assert result.checkpoint.to_dict()["epoch"] == 3
    assert [row["metrics"]["epoch"] for row in result.rows] == [0, 1, 2, 3]
