import os
import tempfile
import torch
import ray.train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
from ray.train.torch import TorchTrainer


def validate_fn(checkpoint: ray.train.Checkpoint, add=0) -> dict:
    with checkpoint.as_directory() as d:
        return {"score": torch.load(os.path.join(d, "model.pt"))["n"] + add}


def train_func(config):
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as d:
            torch.save({"n": epoch}, os.path.join(d, "model.pt"))
            ray.train.report(
                {"epoch": epoch}, checkpoint=Checkpoint.from_directory(d), validation=ValidationTaskConfig(fn_kwargs={"add": 10}) if epoch else True
            )


result = TorchTrainer(
    train_func,
    validation_config=ValidationConfig(fn=validate_fn),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")),
).fit()
assert [m["score"] for _, m in result.best_checkpoints] == [0, 11], result.best_checkpoints
