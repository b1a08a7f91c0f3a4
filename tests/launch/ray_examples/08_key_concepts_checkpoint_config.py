import tempfile
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import ray.train


def train_fn(config):
    for score in (1, 3, 2):
        with tempfile.TemporaryDirectory() as d:
            open(d + "/f", "w").close()
            ray.train.report({"accuracy": score}, checkpoint=Checkpoint.from_directory(d))


run_config = RunConfig(
    checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max")
)
result = TorchTrainer(train_fn, run_config=run_config, scaling_config=ScalingConfig(num_workers=2)).fit()
assert [m["accuracy"] for _, m in result.best_checkpoints] == [2, 3], result.best_checkpoints
