"""Jobs that store at s3://, against a real server: a rank is lost, a run fails, the next one goes on; results come
back from the bucket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trainjob
from support import s3
from support.faults import Faults
from support.scenario import Stage
from trainjob import DataParallelTrainer, RunConfig, ScalingConfig
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch import LaunchError, TrainingFailedError

pytestmark = pytest.mark.slow


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> str:
    """A storage path in a bucket that agents and launcher reach."""
    s3.use(monkeypatch, s3.endpoint())
    return s3.fresh_uri().rsplit("/", 1)[0]


def test_a_lost_rank_comes_back_and_the_run_after_a_failed_one_goes_on_from_the_bucket(
    stage: Stage, storage: str
) -> None:
    stage.plan(Faults().kill(rank=1, at_step=2).in_attempt(1).exits(9, rank=0, at_step=4).in_attempt(2))
    first = stage.run(stage.job("--steps", "6", storage=storage, max_failures=1))
    assert first.status.holds("Failed"), first.text()
    assert first.starts(1) == [(1, 0), (2, 2)]
    store = open_store(f"{storage}/default/job")
    before = catalogue.list_checkpoints(store)[-1]
    assert str(before.id).startswith("1-2-") and {entry.algorithm for entry in before.entries} == {store.algorithm}

    second = stage.run(stage.job("--steps", "6", storage=storage))
    assert second.status.holds("Complete"), second.text()
    assert second.starts(0) == second.starts(1) == [(1, 4)], "nothing was staged any more: it came from the bucket"
    assert second.status.checkpoint.latest is not None and str(second.status.checkpoint.latest.uri).startswith(
        f"{storage}/default/job/checkpoints/2-1-"
    )
    assert catalogue.read_end(store, 2) is not None and store.unfinished("") == []

    uri = catalogue.checkpoint_uri(store, before.id)
    other = stage.run(stage.job("--steps", "5", name="other", storage=str(stage.storage), resume_from=uri))
    assert other.status.holds("Complete") and other.starts(0) == [(1, 4)], other.text()


def test_a_bucket_that_is_not_there_is_told_before_anything_starts(stage: Stage, storage: str) -> None:
    with pytest.raises(LaunchError, match="there is no bucket no-such-bucket"):
        stage.run(stage.job(storage="s3://no-such-bucket/runs"))


def test_a_trainer_gets_its_result_from_the_bucket(stage: Stage, storage: str, tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        checkpoint = trainjob.get_checkpoint()
        begin = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        for step in range(begin, 3):
            trainjob.report(
                {"step": step, "begin": begin}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step
            )
            if step == 1 and not begin:
                raise LookupError("no such digit")

    trainer = DataParallelTrainer(
        loop,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="digits", storage_path=storage),
    )
    with pytest.raises(TrainingFailedError, match="no such digit"):
        trainer.fit()
    folder = f"{storage}/default/digits"
    assert DataParallelTrainer.can_restore(folder) and not DataParallelTrainer.can_restore(f"{storage}/default/other")
    result = DataParallelTrainer.restore(folder).fit()
    assert result.metrics == {"step": 2, "begin": 2}
    with pytest.raises(LaunchError, match="has no runs"):
        trainjob.Result.from_path(f"{storage}/default/other")
    assert read_back(folder, tmp_path) == (result.metrics, {"step": 2})


def read_back(folder: str, tmp_path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What a new process would see: metrics, and the checkpoint's content. In a function of its own, as what was
    brought here goes with the handle.
    """
    result = trainjob.Result.from_path(folder)
    assert result.checkpoint is not None and result.checkpoint.path.startswith("s3://")
    copied = result.checkpoint.to_directory(str(tmp_path / "copied"))
    assert trainjob.Checkpoint(copied).to_dict() == result.checkpoint.to_dict()
    return result.metrics, result.checkpoint.to_dict()
