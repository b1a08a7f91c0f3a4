"""What every trainer does, from the caller's side: a failure, Ctrl-C, the launcher's own modules. Nothing here is read
as a script that needs the tensor library, which each worker would import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trainjob
from support.scenario import Stage, left_behind, wait_until
from trainjob import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback


def trainer(stage: Stage, loop: Any, **run: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=stage.storage, **run),
    )


def save(step: int) -> None:
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)


@pytest.mark.slow
def test_a_module_of_the_launchers_folders_is_the_one_that_a_fork_imports(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop() -> bool:
        import colorsys

        return hasattr(colorsys, "own")

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "colorsys.py").write_text("own = True\n")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert trainer(stage, loop, prefork="auto", preload=["colorsys"]).fit().return_value is True


@pytest.mark.slow
def test_a_failure_is_raised_with_its_first_cause_and_what_was_left(stage: Stage) -> None:
    def loop() -> None:
        save(0)
        if trainjob.get_context().get_world_rank() == 1:
            raise LookupError("no such digit")
        save(1)

    with pytest.raises(TrainingFailedError, match=r"rank 1 .*LookupError: no such digit") as caught:
        trainer(stage, loop, name="fails", failure_config=FailureConfig(max_failures=1)).fit()
    error = caught.value
    assert error.rank == 1
    assert error.worker_traceback is not None and "in loop" in error.worker_traceback
    assert error.result is not None and error.result.error is error
    assert error.result.metrics == {"step": 0}
    assert [row["attempt"] for row in error.result.rows] == [1, 2], "it was tried again, once"


@pytest.mark.slow
def test_ctrl_c_stops_the_job_and_the_next_fit_of_its_name_goes_on(stage: Stage) -> None:
    class PressCtrlC(UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            raise KeyboardInterrupt

    def loop() -> Any:
        import time

        found = trainjob.get_checkpoint()
        start = found.to_dict()["step"] + 1 if found else 0
        for step in range(start, 1_000_000 if found is None else start + 2):
            save(step)
            time.sleep(0.05)
        return start

    with pytest.raises(KeyboardInterrupt):
        trainer(stage, loop, name="again", callbacks=[PressCtrlC()]).fit()
    wait_until(lambda: not left_behind(stage.root))
    assert trainer(stage, loop, name="again").fit().return_value > 0
