"""Best checkpoints by a metric, read after training."""

import os
import sys
import tempfile

import torch

import trainjob
from trainjob import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from trainjob.torch import TorchTrainer

ACCURACIES = [0.3, 0.9, 0.5, 0.7, 0.6]


def train_func(config):
    for epoch, accuracy in enumerate(ACCURACIES):
        metrics = {"accuracy": accuracy, "epoch": epoch, "eval": {"f1": accuracy / 2}}
        if trainjob.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as d:
                torch.save(torch.tensor(accuracy), os.path.join(d, "accuracy.pt"))
                trainjob.report(metrics, checkpoint=Checkpoint.from_directory(d))
        else:
            trainjob.report(metrics)


if __name__ == "__main__":
    run_config = RunConfig(
        name="keep-best",
        storage_path=sys.argv[1],
        checkpoint_config=CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
        ),
    )
    result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
    kept = [metrics["accuracy"] for _, metrics in result.best_checkpoints]
    assert 0.9 in kept and kept[-1] == 0.6 and len(kept) <= 3, kept
    best = result.get_best_checkpoint(metric="accuracy", mode="max")
    with best.as_directory() as d:
        assert abs(torch.load(os.path.join(d, "accuracy.pt")).item() - 0.9) < 1e-6
    assert result.get_best_checkpoint(metric="eval.f1", mode="min").metrics["accuracy"] == min(kept)
