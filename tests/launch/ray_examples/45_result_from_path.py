import os
import ray.train
from ray.train import Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import tempfile


def train_fn(config):
    with tempfile.TemporaryDirectory() as d:
        open(d + "/f", "w").close()
        ray.train.report({"a": 1}, checkpoint=ray.train.Checkpoint.from_directory(d))


storage_path = os.path.expanduser("~/results")
TorchTrainer(train_fn, run_config=RunConfig(name="My_Run=1", storage_path=storage_path), scaling_config=ScalingConfig(num_workers=2)).fit()
restored_result = Result.from_path(os.path.join(storage_path, "My_Run=1"))
print("Restored loss", restored_result.metrics["a"], restored_result.checkpoint)
