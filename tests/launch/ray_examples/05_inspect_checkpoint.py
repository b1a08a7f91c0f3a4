import os
import tempfile
from pathlib import Path

import ray.train
from ray.train import Checkpoint
from ray.train.torch import TorchTrainer


def train_fn(config):
    with tempfile.TemporaryDirectory() as d:
        Path(d, "model.pt").write_text("weights")
        ray.train.report({"accuracy": 0.5}, checkpoint=Checkpoint.from_directory(d))


trainer = TorchTrainer(train_fn, scaling_config=ray.train.ScalingConfig(num_workers=2))
result = trainer.fit()
checkpoint: Checkpoint = result.checkpoint
with checkpoint.as_directory() as checkpoint_dir:
    assert os.listdir(checkpoint_dir) == ["model.pt"]
local = checkpoint.to_directory("./here")
assert Path(local, "model.pt").read_text() == "weights"
print(checkpoint.path, checkpoint.get_metadata())
