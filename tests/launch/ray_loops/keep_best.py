"""Best checkpoints by a metric, read after training."""

import os
import sys
import tempfile

import torch

import trainjob
from trainjob import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig
from trainjob.torch import TorchTrainer

ACCURACIES = [0.3, 0.9, 0.5, 0.7, 0.6]


def train_func(config):
    assert trainjob.get_context().get_experiment_name() == "Keep_best=1"
    for epoch, accuracy in enumerate(ACCURACIES):
        metrics = {"accuracy": accuracy, "epoch": epoch, "eval": {"f1": accuracy / 2}}
        if trainjob.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as d:
                torch.save(torch.tensor(accuracy), os.path.join(d, "accuracy.pt"))
                checkpoint = Checkpoint.from_directory(d)
                trainjob.report(metrics, checkpoint=checkpoint, delete_local_checkpoint_after_upload=True)
                assert not os.path.exists(d), "files and folder were taken over"
        else:
            trainjob.report(metrics)


if __name__ == "__main__":
    run_config = RunConfig(
        name="Keep_best=1",
        storage_path=sys.argv[1],
        checkpoint_config=CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
        ),
    )
    result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
    kept = [metrics["accuracy"] for _, metrics in result.best_checkpoints]
    assert kept == [0.7, 0.9], "worst first, as many as are to be kept, the latest only if it is one of them"
    assert result.checkpoint.metrics["accuracy"] == result.metrics["accuracy"] == 0.6
    assert [(c, m["accuracy"]) for c, m in Result.from_path(result.path).best_checkpoints] == [
        (c, m["accuracy"]) for c, m in result.best_checkpoints
    ]
    assert Result.from_path(os.path.join(sys.argv[1], "Keep_best=1")).path == result.path
    best = result.get_best_checkpoint(metric="accuracy", mode="max")
    with best.as_directory() as d:
        assert abs(torch.load(os.path.join(d, "accuracy.pt")).item() - 0.9) < 1e-6
    assert result.get_best_checkpoint(metric="eval.f1", mode="min").metrics["accuracy"] == min(kept)
