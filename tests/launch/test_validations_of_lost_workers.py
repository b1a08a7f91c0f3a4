"""Rank 0's agent is lost while a checkpoint is validated: that is begun anew, or given up with a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trainjob
from trainjob import (
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    ValidationConfig,
)
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.stores.opening import open_store

pytestmark = pytest.mark.slow


def trainer(folder: Path, failures: int, workers: int) -> DataParallelTrainer:
    """Of two checkpoints: while the first is validated, rank 0's agent is killed. By its report the second is the best,
    by its validation the first.
    """

    def measures(checkpoint: Any) -> dict[str, float]:
        import time

        step = checkpoint.to_dict()["step"]
        (folder / f"measures {step}").touch()
        while not (folder / "resumed").exists():
            time.sleep(0.02)
        return {"accuracy": 1.0 - step / 10}

    def train() -> None:
        import os
        import signal
        import time

        context = trainjob.get_context()
        agent = os.getppid()
        found = trainjob.get_checkpoint()
        for step in range(1 if found is None else found.to_dict()["step"] + 1, 3):
            saved = trainjob.Checkpoint.from_dict({"step": step})
            trainjob.report({"accuracy": step / 10}, checkpoint=saved, step=step, validation=True)
        if context.get_attempt() == 1:
            if context.rank == 0:
                while not (folder / "measures 1").exists():
                    time.sleep(0.02)
                os.kill(agent, signal.SIGKILL)
            time.sleep(600)
        if context.rank == 0:
            (folder / "resumed").touch()

    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="validated",
            storage_path=folder / "storage",
            prefork="Never",
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
        validation_config=ValidationConfig(fn=measures),
    )


def statuses(folder: Path) -> dict[str, str]:
    store = open_store(str(folder / "storage" / "default" / "validated"))
    return {str(id_): found.status for id_, found in validations.read(store, 1).items()}


def test_the_next_attempt_begins_it_anew_and_the_best_is_by_what_it_measures(tmp_path: Path) -> None:
    result = trainer(tmp_path, failures=3, workers=2).fit()
    assert set(statuses(tmp_path).values()) == {validations.VALIDATED}
    assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [0.8, 0.9]
    assert result.best_checkpoints[-1][0].to_dict() == {"step": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_fails_by_it_leaves_none_that_is_open(tmp_path: Path, workers: int) -> None:
    with pytest.raises(TrainingFailedError):
        trainer(tmp_path, failures=0, workers=workers).fit()
    found = statuses(tmp_path)
    assert found and set(found.values()) == {validations.FAILED}
