import tempfile

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    start_epoch = 0
    for epoch in range(start_epoch, config["num_epochs"]):
        with tempfile.TemporaryDirectory() as tmpdir:
            ray.train.report({"epoch": epoch}, checkpoint=Checkpoint.from_directory(tmpdir))
    reported_checkpoints = ray.train.get_all_reported_checkpoints()
    for ckpt in reported_checkpoints:
        print(f"Checkpoint: {ckpt.checkpoint}, metrics: {ckpt.metrics}")
    assert len(reported_checkpoints) == 2


TorchTrainer(train_func, train_loop_config={"num_epochs": 2}, scaling_config=ScalingConfig(num_workers=2)).fit()
