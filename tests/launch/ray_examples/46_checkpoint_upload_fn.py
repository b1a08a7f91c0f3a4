import os
import shutil
import tempfile
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer


def train_fn(config):
    for epoch in range(config["num_epochs"]):
        tmpdir = tempfile.mkdtemp()
        open(tmpdir + "/model.pt", "w").close()

        def checkpoint_upload_fn(checkpoint, checkpoint_dir_name):
            full_checkpoint_path = ray.train.get_context().get_storage().build_checkpoint_path_from_name(checkpoint_dir_name)
            shutil.copytree(checkpoint.path, full_checkpoint_path, dirs_exist_ok=True)
            return Checkpoint.from_directory(full_checkpoint_path)

        ray.train.report(
            {"epoch": epoch},
            checkpoint=Checkpoint.from_directory(tmpdir),
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=checkpoint_upload_fn,
        )


result = TorchTrainer(train_fn, train_loop_config={"num_epochs": 2}, scaling_config=ScalingConfig(num_workers=2)).fit()
assert os.listdir(result.checkpoint.path) == ["model.pt"], os.listdir(result.checkpoint.path)
