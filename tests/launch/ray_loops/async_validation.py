"""Checkpoints are validated beside the training, ranked by what that measured, and taken up again after a restart."""

import os
import sys
import tempfile
import time
from pathlib import Path

from trainjob.compat.ray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    FailureConfig,
    ReportedCheckpointStatus,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from trainjob.compat.ray.train.torch import TorchTrainer

from trainjob.compat import ray

ACCURACY = {0: 0.1, 1: 0.9, 2: 0.3}


def validate(checkpoint, folder, percent=False):
    assert "RANK" not in os.environ, "it is no rank"
    with checkpoint.as_directory() as found:
        step = int(Path(found, "step").read_text())
    while step == 1 and not os.path.exists(f"{folder}/second attempt"):
        time.sleep(0.05)
    while step == 4:
        time.sleep(0.05)  # longer than its timeout
    metrics = {"accuracy": ACCURACY[step] * (100 if percent else 1)}
    with open(f"{folder}/validated", "a") as file:
        file.write(f"{step} ")
    return metrics


def train_func(config):
    context, first = ray.train.get_context(), ray.train.get_checkpoint() is None
    for step in range(0 if first else 2, 5):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/step", "w") as file:
                file.write(str(step))
            checkpoint = Checkpoint.from_directory(folder) if context.get_world_rank() == 0 else None
            asked = ValidationTaskConfig(fn_kwargs={"percent": True}) if step == 2 else True
            if step == 4:
                asked = ValidationTaskConfig(timeout_s=1.5)
            ray.train.report({"step": step}, checkpoint=checkpoint, validation=asked)
        if first and step == 1:
            raise OSError("the node goes away")
        if context.get_world_rank() == 0:
            open(f"{config['folder']}/second attempt", "a").close()
    committed = ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)
    assert [one.metrics["step"] for one in committed][-1] == 4
    status = {one.metrics["step"]: one.status for one in ray.train.get_all_reported_checkpoints()}
    assert status[1] is status[2] is ReportedCheckpointStatus.VALIDATED, status
    assert status[4] is ReportedCheckpointStatus.VALIDATION_TIMEOUT, status


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="validated",
            storage_path=folder,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
        validation_config=ValidationConfig(fn=validate, task_config=ValidationTaskConfig(fn_kwargs={"folder": folder})),
    )
    result = trainer.fit()
    found = [(metrics["step"], metrics["accuracy"]) for _, metrics in result.best_checkpoints]
    assert found == [(1, 0.9), (2, 30.0)], found
    done = Path(folder, "validated").read_text().split()
    assert list(dict.fromkeys(done)) == ["0", "1", "2"], ("in their order; step 3 raises", done)
    assert result.get_best_checkpoint("accuracy", "max") == result.best_checkpoints[-1][0]
    kept = os.listdir(os.path.join(result.path, "checkpoints"))
    assert len(kept) == 3, ("the two best and the latest", kept)
