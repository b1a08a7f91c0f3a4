import os
import tempfile
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    start = 0
    if ray.train.get_checkpoint():
        with ray.train.get_checkpoint().as_directory() as d:
            start = int(open(d + "/n").read()) + 1
    for i in range(start, 4):
        with tempfile.TemporaryDirectory() as d:
            open(d + "/n", "w").write(str(i))
            ray.train.report({"i": i, "start": start}, checkpoint=Checkpoint.from_directory(d))
        if i == 1 and start == 0:
            raise RuntimeError("once")


storage_path = os.path.expanduser("~/results")
experiment_path = os.path.join(storage_path, "dl_trainer_restore")
try:
    TorchTrainer(train_func, train_loop_config={}, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="dl_trainer_restore", storage_path=storage_path)).fit()
except ray.train.TrainingFailedError as e:
    print("failed as planned")
if TorchTrainer.can_restore(experiment_path):
    trainer = TorchTrainer.restore(experiment_path, datasets=None)
    result = trainer.fit()
assert result.metrics == {"i": 3, "start": 2} or result.metrics["start"] == 2, result.metrics
