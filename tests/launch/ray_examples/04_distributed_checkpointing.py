import os
import tempfile

import torch
from ray import train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        rank = train.get_context().get_world_rank()
        torch.save({"rank": rank}, os.path.join(temp_checkpoint_dir, f"model-rank={rank}.pt"))
        checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
        train.report({"loss": 1.0}, checkpoint=checkpoint)


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
with result.checkpoint.as_directory() as d:
    assert sorted(os.listdir(d)) == ["model-rank=0.pt", "model-rank=1.pt"], os.listdir(d)
