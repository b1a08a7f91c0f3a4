import os
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer

HERE = os.path.abspath("mine")


def train_fn(config):
    for epoch in range(2):
        folder = os.path.join(HERE, str(epoch))
        os.makedirs(folder, exist_ok=True)
        rank = ray.train.get_context().get_world_rank()
        open(f"{folder}/{rank}.pt", "w").close()
        ray.train.report(
            {"epoch": epoch}, checkpoint=Checkpoint(folder), checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD
        )


result = TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.checkpoint.path == os.path.join(HERE, "1"), result.checkpoint.path
