"""A run that failed for good is restored from its path; metadata travel with the checkpoint; Result.from_path."""

import json
import os
import sys
import tempfile

import trainjob
from trainjob import Checkpoint, Result, RunConfig, ScalingConfig
from trainjob.torch import TorchTrainer


def train_func(config):
    start, checkpoint = 0, trainjob.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as d, open(os.path.join(d, "state.json")) as f:
            start = json.load(f)["step"] + 1
        assert checkpoint.get_metadata()["framework"] == "torch"
    for step in range(start, 5):
        if step == 2 and not os.path.exists(config["repaired"]):
            raise FileNotFoundError(config["repaired"])
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "state.json"), "w") as f:
                json.dump({"step": step}, f)
            checkpoint = Checkpoint.from_directory(d)
            checkpoint.set_metadata({"framework": "torch", "step": step})
            trainjob.report({"step": step, "start": start}, checkpoint=checkpoint)


if __name__ == "__main__":
    storage = sys.argv[1]
    repaired = os.path.join(storage, "repaired")
    path = os.path.join(storage, "restore_me")  # as Ray has it; it lies in default/restore-me-<sum>
    assert not TorchTrainer.can_restore(path)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"repaired": repaired},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="restore_me", storage_path=storage),
    )
    try:
        trainer.fit()
    except trainjob.errors.TrainingFailedError as error:
        assert "FileNotFoundError" in str(error) and error.rank in (0, 1)
        assert error.result.metrics["step"] == 1
    else:
        raise AssertionError("it should have failed")
    assert TorchTrainer.can_restore(path)
    open(repaired, "w").close()
    result = TorchTrainer.restore(path).fit()
    assert result.metrics == {"step": 4, "start": 2}
    found = Result.from_path(result.path)
    assert found.metrics == result.metrics
    assert found.checkpoint.get_metadata()["step"] == 4
