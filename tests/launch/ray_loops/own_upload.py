"""A function of the user's own writes the checkpoint's files; the list of checkpoints tells their status."""

import os
import shutil
import sys
import tempfile

import torch
from trainjob.compat.ray.train.torch import TorchCheckpoint, TorchTrainer
from trainjob.compat.ray.train.v2.api.reported_checkpoint import ReportedCheckpointStatus

from trainjob.compat import ray


def upload(checkpoint, checkpoint_dir_name):
    target = ray.train.get_context().get_storage().build_checkpoint_path_from_name(checkpoint_dir_name)
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(checkpoint.path):
        shutil.copy(os.path.join(checkpoint.path, name), target)
    return ray.train.Checkpoint(target)


def train_func():
    rank = ray.train.get_context().get_world_rank()
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            open(f"{folder}/rank-{rank}.pt", "w").close()
            ray.train.report(
                {"step": step},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
                checkpoint_dir_name=f"step_{step}",
                checkpoint_upload_fn=upload,
            )
    model = torch.nn.Linear(1, 1)
    checkpoint = TorchCheckpoint.from_state_dict(model.state_dict()) if rank == 0 else None
    ray.train.report({"step": 2}, checkpoint=checkpoint, checkpoint_dir_name="as_named")
    mode = ray.train.CheckpointConsistencyMode.COMMITTED
    found = ray.train.get_all_reported_checkpoints(consistency_mode=mode)
    assert [one.status for one in found] == [ReportedCheckpointStatus.COMMITTED] * 3
    place = ray.train.get_context().get_storage().build_checkpoint_path_from_name("step_0")
    assert found[0].checkpoint.path == place, "a copy was made"
    assert found[0].checkpoint.files() == ["rank-0.pt", "rank-1.pt"], found[0].checkpoint.files()
    there = ray.train.get_context().get_storage().build_checkpoint_path_from_name("there")
    os.makedirs(there, exist_ok=True)
    open(f"{there}/rank-{rank}.pt", "w").close()
    mode = ray.train.CheckpointUploadMode.NO_UPLOAD
    ray.train.report({"step": 3}, checkpoint=ray.train.Checkpoint(there), checkpoint_upload_mode=mode)
    newest = ray.train.get_checkpoint()
    assert newest.path == there and newest.files() == ["rank-0.pt", "rank-1.pt"]
    with newest.as_directory() as folder:
        assert folder == there


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=sys.argv[1], failure_config=ray.train.FailureConfig(max_preemption_failures=-1)
        ),
    ).fit()
    assert sorted(os.listdir(os.path.join(result.path, "uploads"))) == ["step_0", "step_1", "there"]
    assert result.checkpoint.path == os.path.join(result.path, "uploads", "there")
    again = ray.train.Result.from_path(result.path).checkpoint
    assert again.files() == ["rank-0.pt", "rank-1.pt"] and again.path == result.checkpoint.path
    named = TorchCheckpoint(os.path.join(result.path, "as_named"))
    assert named.files() == ["model.pt"] and named.get_model(torch.nn.Linear(1, 1)) is not None
    model = TorchCheckpoint(result.best_checkpoints[2][0].path).get_model(torch.nn.Linear(1, 1))
    assert isinstance(model, torch.nn.Linear)
