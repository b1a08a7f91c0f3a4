"""TorchTrainer from the caller's side: results, errors, Ctrl-C, below a running event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trainjob
from support.patience import HANG_S
from support.scenario import Stage
from trainjob import RunConfig, ScalingConfig, TorchTrainer
from trainjob.launch import ConfigError, LaunchError
from trainjob.launch.outcome import ask_storage


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


@pytest.mark.slow
def test_the_last_checkpoint_before_a_nan_is_named_at_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Whoever waits is told within seconds, or not at all; on a busy machine a folder may take longer.
    monkeypatch.setattr(ask_storage, "ASK_S", HANG_S)

    def loop() -> None:
        for step in range(4):
            loss = float("nan") if step > 1 else 0.5
            saved = trainjob.Checkpoint.from_dict({"step": step})
            trainjob.report({"loss": loss}, checkpoint=saved, step=step)

    trainer(stage, loop, name="lost").fit()
    assert "checkpoint 1-1-2 at step 1 is the last before loss became NaN\n" in capfd.readouterr().err
