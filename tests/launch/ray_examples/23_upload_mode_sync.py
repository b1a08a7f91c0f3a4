import tempfile
import ray.train
from ray.train import Checkpoint, ScalingConfig, CheckpointUploadMode
from ray.train.torch import TorchTrainer


def train_fn(config):
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as tmpdir:
            open(tmpdir + "/model.pt", "w").write(str(epoch))
            ray.train.report(
                {"epoch": epoch}, checkpoint=Checkpoint.from_directory(tmpdir), checkpoint_upload_mode=ray.train.CheckpointUploadMode.SYNC
            )


assert TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2)).fit().checkpoint
