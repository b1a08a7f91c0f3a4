import tempfile
import ray.train
from ray.train import Checkpoint, CheckpointConsistencyMode, ScalingConfig
from ray.train.torch import TorchTrainer


def train_fn():
    with tempfile.TemporaryDirectory() as d:
        open(d + "/f", "w").close()
        ray.train.report({"a": 1}, checkpoint=Checkpoint.from_directory(d))
    assert len(ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)) == 1
    assert len(ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.VALIDATED, timeout_s=5)) == 1


TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2)).fit()
