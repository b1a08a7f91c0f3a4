import os
import tempfile
from pathlib import Path
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig


def train_fn(config):
    for i in range(3):
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            Path(temp_checkpoint_dir).joinpath("model.pt").touch()
            ray.train.report({"loss": 0.1 * i, "mean_accuracy": i}, checkpoint=Checkpoint.from_directory(temp_checkpoint_dir))


trainer = DataParallelTrainer(
    train_fn,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="my_run", storage_path=os.path.expanduser("~/key"),
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="mean_accuracy", checkpoint_score_order="max"),
        failure_config=FailureConfig(max_failures=-1),
    ),
)
result = trainer.fit()
print("Observed metrics:", result.metrics)
df = result.metrics_dataframe
print("Minimum loss", min(df["loss"]))
best = result.get_best_checkpoint("mean_accuracy", "max")
print(result.path, result.checkpoint, result.error)
for checkpoint, metrics in result.best_checkpoints:
    print("ckpt", checkpoint.path, metrics)
with result.checkpoint.as_directory() as d:
    assert os.listdir(d) == ["model.pt"]
storage_path = result.path
try:
    result_filesystem = result.filesystem
    print(f"Results location (fs, path) = ({result_filesystem}, {storage_path})")
except ImportError as missing:
    print("pyarrow:", missing)
