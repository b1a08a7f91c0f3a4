"""TorchTrainer from the caller's side: results, errors, Ctrl-C, below a running event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trainjob
from support.scenario import Stage, left_behind
from trainjob import FailureConfig, RunConfig, ScalingConfig, TorchTrainer, UserCallback
from trainjob.launch import ConfigError, LaunchError, TrainingFailedError


def trainer(stage: Stage, loop: Any, config: dict[str, Any] | None = None, **run: Any) -> TorchTrainer:
    return TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=stage.storage, **run),
    )


def save(step: int) -> None:
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)


@pytest.mark.slow
def test_what_the_function_returns_and_reports_is_in_the_result(stage: Stage) -> None:
    class Loop:
        def __call__(self, config: dict[str, Any]) -> Any:
            import torch.distributed as dist

            save(config["step"])
            return {"rank": dist.get_rank(), "size": dist.get_world_size()}

    async def notebook() -> trainjob.Result:
        return trainer(stage, Loop, {"step": 4}, name="Über uns").fit()

    result = asyncio.run(notebook())
    assert result.return_value == {"rank": 0, "size": 2}
    assert result.metrics == {"step": 4}
    assert result.checkpoint is not None and result.checkpoint.to_dict() == {"step": 4}
    assert Path(result.path).parent == stage.storage / "default"
    assert trainjob.Result.from_path(result.path).metrics == {"step": 4}
    assert TorchTrainer.can_restore(result.path)
    with pytest.raises(LaunchError, match="completed: there is nothing to restore"):
        TorchTrainer.restore(result.path)


@pytest.mark.slow
def test_ranks_of_a_function_are_forks_of_what_its_module_needs(stage: Stage) -> None:
    def loop() -> list[str]:
        from trainjob.session import imported

        return sorted({"torch", "torch._dynamo"} & {*imported.ahead})

    assert trainer(stage, loop, prefork="auto").fit().return_value == ["torch", "torch._dynamo"]
    assert trainer(stage, loop, prefork="Never", name="plain").fit().return_value == []


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
        for step in range(start, 1000 if found is None else start + 2):
            save(step)
            time.sleep(0.05)
        return start

    with pytest.raises(KeyboardInterrupt):
        trainer(stage, loop, name="again", callbacks=[PressCtrlC()]).fit()
    assert left_behind(stage.root) == []
    assert trainer(stage, loop, name="again").fit().return_value > 0


def test_what_has_no_meaning_here_is_refused_in_the_constructor(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="datasets"):
        TorchTrainer(lambda: None, datasets={"train": [1]})
    with pytest.raises(ConfigError, match="scaling_config"):
        TorchTrainer(lambda: None, scaling_config={"num_workers": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="train_loop_per_worker"):
        TorchTrainer(lambda a, b: None)
    with pytest.raises(ConfigError, match="train_loop_config"):
        TorchTrainer(lambda: None, train_loop_config=[1])  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="cannot be restored"):
        TorchTrainer.restore(stage.root)
    assert not TorchTrainer.can_restore(stage.root)
