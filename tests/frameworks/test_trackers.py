"""Experiment trackers with the real libraries: what was recorded is read back by each one's own reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.spoken import said
from trackers.test_feed import reported
from trainjob.launch.handover.callbacks import RunContext
from trainjob.trackers import MLflowLogger, WandbLogger
from trainjob.trackers.feed import Feed

LIMIT_S = 500
JOB = """
import os, signal
import trainjob
from trainjob import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train(config):
    context = trainjob.get_context()
    found = trainjob.get_checkpoint()
    start = 0 if found is None else found.to_dict()["step"]
    for step in range(start + 1, config["last"] + 1):
        if (context.rank, context.attempt, step) == (1, 1, 4) and not start:
            os.kill(os.getpid(), signal.SIGKILL)
        kept = Checkpoint.from_dict({"step": step}) if step in (2, 5) else None
        trainjob.report({"loss": 60.0 / step, "attempt": context.attempt}, checkpoint=kept, step=step)
    if config["raises"]:
        raise ValueError("unlucky")

def fit(callbacks, last=5, raises=True, failures=1, name="job"):
    try:
        DataParallelTrainer(
            train,
            train_loop_config={"last": last, "raises": raises},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                name=name, storage_path=".", failure_config=FailureConfig(max_failures=failures), callbacks=callbacks
            ),
        ).fit()
    except trainjob.TrainingFailedError as error:
        print("failed:", error.reason)
"""
TWICE = """
if __name__ == "__main__":
    for raises, last in ((True, 5), (False, 7)):
        fit([LOGGER], last=last, raises=raises)
"""


def came_of(text: str, here: Path) -> str:
    (here / "main.py").write_text(JOB + text)
    return said(["main.py"], here, limit_s=LIMIT_S, WANDB_MODE="offline", WANDB_SILENT="true")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed: make test-frameworks")
def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    """Attempt 1 dies before its fourth report, attempt 2 does step 3 again and fails at the end; the next start of the
    job goes on from step 5.
    """
    ours = "from trainjob.trackers import TensorBoardLogger\n"
    shown = came_of(ours + TWICE.replace("LOGGER", "TensorBoardLogger()"), tmp_path)
    assert "failed: UserCodeError" in shown
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulated = EventAccumulator(str(tmp_path / "default" / "job" / "tensorboard"))
    accumulated.Reload()
    assert sorted(accumulated.Tags()["scalars"]) == ["attempt", "loss"]
    found = accumulated.Scalars("loss")
    assert [(one.step, round(one.value, 3)) for one in found] == [(n, round(60.0 / n, 3)) for n in range(1, 8)]
    assert [int(one.value) for one in accumulated.Scalars("attempt")] == [1, 1, 2, 2, 2, 1, 1]
    assert all(one.wall_time > 1.7e9 for one in found)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: make test-frameworks")
def test_mlflow_has_one_run_for_all_attempts_and_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came_of("from trainjob.trackers import MLflowLogger\n" + TWICE.replace("LOGGER", "MLflowLogger()"), tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{tmp_path}/default/job/mlruns")
    experiment = client.get_experiment_by_name("trainjob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["last"]) == ("job", "FINISHED", "5")
    found = sorted((one.step, one.timestamp, one.value) for one in client.get_metric_history(run.info.run_id, "loss"))
    assert [(step, value) for step, _, value in found] == [(n, 60.0 / n) for n in (1, 2, 3, 3, 4, 5, 6, 7)]
    begun = client.get_metric_history(run.info.run_id, "trainjob/attempt")
    assert [(int(one.value), one.step) for one in begun] == [(1, 1), (2, 3), (1, 6)]


@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: make test-frameworks")
def test_mlflow_hears_of_a_jobs_end_also_without_another_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside rank 0's agent there is a process for each attempt, and the last attempts may break before they report."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    place = f"file://{tmp_path}/mlruns"
    (tmp_path / "job").mkdir()
    context = RunContext(name="job", path=str(tmp_path / "job"), run_config=None, scaling_config=None)
    for attempt, over in ((1, False), (2, True)):
        fed = Feed(MLflowLogger(place), context, attempt=attempt)
        fed.put(reported(1))
        fed.end(ValueError("unlucky") if over else None, LIMIT_S, closes=over)
    client = MlflowClient(place)
    experiment = client.get_experiment_by_name("trainjob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 1


def records(data: bytes) -> Iterator[bytes]:
    """Those of a .wandb file that is smaller than one block: its head, then checksum, length, kind and data of each."""
    assert data.startswith(b":W&B") and len(data) < 32 * 1024
    at = 7
    while at < len(data):
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        assert kind == 1, "a record in one piece"
        yield data[at + 7 : at + 7 + length]
        at += 7 + length


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: make test-frameworks")
def test_wandb_has_one_run_offline(tmp_path: Path) -> None:
    ray = "from trainjob.compat.ray.air.integrations.wandb import WandbLoggerCallback\n"
    came_of(ray + TWICE.replace("LOGGER", "WandbLoggerCallback(project='p', excludes=['attempt'])"), tmp_path)
    from wandb.proto import wandb_internal_pb2

    rows, ids, codes = [], set(), []
    for file in sorted((tmp_path / "default" / "job" / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "exit":
                codes.append(record.exit.exit_code)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                assert "attempt" not in items
                rows.append((int(items["trainjob/step"]), int(items["trainjob/attempt"]), float(items["loss"])))
    assert len(ids) == 1 and codes == [1, 0]
    assert rows == [(n, a, 60.0 / n) for n, a in ((1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (6, 1), (7, 1))]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: make test-frameworks")
def test_wandb_takes_two_projects_of_one_training_in_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = RunContext(name="job", path=str(tmp_path), run_config=None, scaling_config=None)
    loggers = [WandbLogger(project, mode="offline") for project in ("a", "b")]
    assert len({logger.place(context) for logger in loggers}) == 2
    feeds = [Feed(logger, context) for logger in loggers]
    for fed in feeds:
        fed.put(reported(1))
    for fed in feeds:
        fed.end(None, HANG_S)
    assert "did not reach it" not in capsys.readouterr().err
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: make test-frameworks")
def test_wandb_is_tried_anew_where_its_server_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps the name of a run that it could not begin, and refuses it from then on."""
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    settings = wandb.Settings(console="off", silent=True, init_timeout=3, base_url="http://127.0.0.1:9")
    logger = WandbLogger("p", mode="online", settings=settings)
    context = RunContext(name="job", path=str(tmp_path), run_config=None, scaling_config=None)
    for _ in range(2):
        with pytest.raises(wandb.errors.CommError, match="connection refused"):
            logger.open(context, reported(1))
