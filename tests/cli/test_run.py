"""`tj run`: the job that is built from the arguments, and what is said at the end."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
import time
from pathlib import Path

import pytest

from support import s3
from support.checkpoint_cli import shell
from support.jobs import attempt, checkpoint, condition, failure, job, progress
from support.patience import HANG_S
from trainjob.checkpoint.reading import runs
from trainjob.cli import main as entry
from trainjob.cli import parser as grammar
from trainjob.cli import run as running
from trainjob.cli.ending import conclude, retry
from trainjob.cli.errors import CommandError
from trainjob.cli.run import Show, build
from trainjob.launch.local.backend import LocalEvent, LocalOutcome
from trainjob.launch.outcome import ask_storage
from trainjob.screen import wording
from trainjob.screen.display import PlainDisplay
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob

MANIFEST = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  workers: 4
  checkpoint: {storage: /ckpt}
  template: {spec: {containers: [{name: trainer, image: digits, command: [python, train.py], env: [{name: A, value: "1"}]}]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(MANIFEST)
    return tmp_path


def args(line: str) -> argparse.Namespace:
    words, script_args = entry._split(shlex.split(line))
    parsed = grammar.build().parse_args(words)
    parsed.script_args = script_args
    return parsed


def container(built: TrainJob) -> dict[str, object]:
    return defaults.trainer_container(built.spec)[1]


def test_a_script_becomes_a_job_of_this_python(folder: Path) -> None:
    built = build(args("run 'my train.py' --workers 2 --name Digits --storage out -- --epochs 3"))
    assert container(built)["command"] == [sys.executable, "my train.py", "--epochs", "3"]
    assert built.spec.workers == 2
    assert built.spec.checkpoint.storage == str(folder / "out")
    assert built.spec.checkpoint.resume_from == "auto"
    assert built.spec.failure_policy.max_failures == 3
    assert built.metadata.name.startswith("digits-")  # not a name as it stands: made one, the same each time
    assert built.metadata.name == build(args("run train.py --name Digits")).metadata.name


def test_unnamed_jobs_do_not_meet() -> None:
    assert build(args("run train.py")).metadata.name != build(args("run train.py")).metadata.name


def test_every_option_reaches_the_job() -> None:
    line = (
        "run -m pkg.train --processes-per-worker 3 --keep 2 --strict --on-upload-failure Fail --fresh "
        "--max-failures -1 --env A=1 --env B=x=y"
    )
    built = build(args(line))
    assert container(built)["command"] == [sys.executable, "-m", "pkg.train"]
    assert container(built)["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}]
    assert defaults.processes_per_worker(built.spec) == 3
    assert (built.spec.checkpoint.keep, built.spec.checkpoint.strict, built.spec.checkpoint.on_upload_failure) == (
        2,
        True,
        "Fail",
    )
    assert built.spec.checkpoint.resume_from == "none"
    assert built.spec.failure_policy.max_failures == -1


def test_a_manifest_is_taken_as_it_is_unless_an_option_says_otherwise(folder: Path) -> None:
    assert build(args("run -f job.yaml --local")).spec.checkpoint.storage == "/ckpt"
    built = build(args("run -f job.yaml --local --workers 2 --storage here --env A=2"))
    assert (built.metadata.name, built.spec.workers, built.spec.checkpoint.storage) == (
        "digits",
        2,
        str(folder / "here"),
    )
    assert container(built)["env"] == [{"name": "A", "value": "2"}]


def test_what_a_manifest_says_of_checkpoints_is_turned_either_way() -> None:
    Path("job.yaml").write_text(
        MANIFEST.replace("{storage: /ckpt}", "{storage: /ckpt, strict: true, onUploadFailure: Fail}")
    )
    as_written = build(args("run -f job.yaml --local")).spec.checkpoint
    assert (as_written.strict, as_written.on_upload_failure) == (True, "Fail")
    turned = build(args("run -f job.yaml --local --no-strict --on-upload-failure Continue")).spec.checkpoint
    assert (turned.strict, turned.on_upload_failure) == (False, "Continue")


def test_an_option_that_makes_no_sense_is_refused_by_its_name() -> None:
    for line in ("run train.py --on-upload-failure Stop", "run -f job.yaml --local --on-upload-failure Stop"):
        with pytest.raises(
            CommandError,
            match=r"--on-upload-failure \(spec\.checkpoint\.onUploadFailure\): must be one of Continue, Fail",
        ) as raised:
            build(args(line))
        assert (raised.value.code, "tj run --help" in raised.value.next_step) == (contract.CLI_USAGE, True)


def test_how_pods_reach_a_bucket_is_for_jobs_on_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """On this machine its own AWS settings count, so that `run` has no such option."""
    for option in ("--s3-endpoint", "--s3-region", "--s3-secret", "--s3-ca-config-map"):
        assert entry.main(["run", "train.py", "--storage", "s3://bucket/x", option, "x"]) == contract.CLI_USAGE
        assert f"unknown: {option} x" in capsys.readouterr().err


def test_a_job_that_makes_no_sense_is_refused_with_its_field() -> None:
    Path("job.yaml").write_text(MANIFEST.replace("workers: 4", "workers: none"))
    with pytest.raises(CommandError, match=r"spec\.workers") as raised:
        build(args("run -f job.yaml --local"))
    assert raised.value.code == contract.CLI_ERROR
    assert "tj validate -f job.yaml" in raised.value.next_step


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("run train.py --workers 2 -- --lr 1e-3", "tj run train.py --workers 2 --name digits -- --lr 1e-3"),
        ("run -m pkg.train --keep 2 --env 'A=b c'", "tj run -m pkg.train --name digits --keep 2 --env 'A=b c'"),
        ("run -f job.yaml --local --fresh", "tj run -f job.yaml --local --name digits"),
        (
            "run a.py --strict --on-upload-failure Fail --max-failures 0",
            "tj run a.py --name digits --on-upload-failure Fail --max-failures 0 --strict",
        ),
        ("run -f job.yaml --local --no-strict", "tj run -f job.yaml --local --name digits --no-strict"),
    ],
)
def test_the_command_that_goes_on_has_the_jobs_name_and_never_starts_over(line: str, again: str) -> None:
    said = retry(args(line), job()).command
    assert said == again
    assert build(args(said.removeprefix("tj "))).metadata.name == "digits"


def concluded(status: dict[str, object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    final = job(status)
    code = conclude(LocalOutcome(job=final, storage="/s", interrupted=False), retry(args("run train.py"), final), 12.3)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def test_a_completed_job_ends_with_its_numbers_and_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    latest = {"latest": {**checkpoint()["latest"], "uri": "/s/checkpoints/1-1-4"}}
    code, said = concluded(
        {
            "conditions": [condition("Complete", "True", "AllRanksSucceeded")],
            "attempt": attempt(2),
            "progress": progress(),
            "checkpoint": latest,
        },
        capsys,
    )
    assert code == contract.CLI_OK
    assert (
        said == "digits completed in 12s with 2 attempts\n  loss=0.11 accuracy=0.975\n  checkpoint 1-1-4: "
        "/s/checkpoints/1-1-4\n"
    )


def test_a_failed_job_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = concluded(
        {"conditions": [condition("Failed", "True", "UserCodeError")], "lastFailure": failure()}, capsys
    )
    assert code == contract.CLI_JOB_FAILED
    assert "digits failed: rank 1 on digits-1 raised" in said
    assert said.endswith("then `tj run train.py --name digits` starts again.\n")


def test_a_stopped_job_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = concluded({"checkpoint": checkpoint()}, capsys)
    assert code == contract.CLI_INTERRUPTED
    assert (
        said == "digits was stopped; checkpoint 1-1-4 is saved\nnext: `tj run train.py --name digits` resumes from it\n"
    )


def test_a_job_that_was_stopped_before_it_saved_says_what_is_there_from_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shell(tmp_path, str(tmp_path / "store"), capsys)

    def stopped(run: int | None) -> list[str]:
        final = job({} if run is None else {"attempt": {**attempt(), "run": run}})
        outcome = LocalOutcome(job=final, storage=made.uri, interrupted=True)
        assert conclude(outcome, retry(args("run train.py"), final), 1.0) == contract.CLI_INTERRUPTED
        return capsys.readouterr().err.splitlines()

    assert stopped(1)[0] == "digits was stopped; nothing was saved" and stopped(1)[1].endswith("starts again")
    made.save("1-1-1")
    assert stopped(1)[0] == "digits was stopped; checkpoint 1-1-1 is saved"
    before = "digits was stopped; nothing new; checkpoint 1-1-1 is there from before"
    assert stopped(None)[0] == before, "before it joined"
    made.run("uid-2")
    assert stopped(2)[0] == before and stopped(2)[1].endswith("resumes from it")
    runs.write_end(made.job.store, 2, {})
    assert stopped(None)[0] == "digits was stopped; nothing was saved", "the next one starts from the beginning"


def test_a_bucket_that_is_away_holds_up_the_end_for_seconds_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever pressed Ctrl-C is told what is not known, long before the time is over for which a job would try."""
    monkeypatch.setattr(ask_storage, "ASK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        s3.use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", retry_s=2 * HANG_S, timeout_s=2 * HANG_S)
        began = time.monotonic()
        final = job({"checkpoint": checkpoint()}, checkpoint={"storage": "s3://bucket/x"})
        code = conclude(
            LocalOutcome(job=final, storage="s3://bucket/x/default/digits", interrupted=True),
            retry(args("run train.py"), final),
            1.0,
        )
        assert time.monotonic() - began < HANG_S
    assert code == contract.CLI_INTERRUPTED
    said = capsys.readouterr().err
    assert said.startswith(
        "digits was stopped; checkpoint 1-1-4 is saved, perhaps a newer one: the storage did not say in 0.5s (it "
        "does not answer)\nnext: "
    )


def test_the_first_line_says_that_a_job_is_elastic() -> None:
    assert wording.workers([1], 1) == "1 worker with 1 process"
    assert wording.workers([1], 4) == "1 worker with 4 processes"
    assert "digits: 1 to 3 workers (elastic) with 1 process each; " in running.opening(
        job(workers=3, elastic={"minWorkers": 1, "maxWorkers": 3})
    )


def test_nothing_is_said_before_something_happens(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(PlainDisplay(sys.stdout, sys.stderr, clock=lambda: 0.0), job(checkpoint={"storage": "/ckpt"}))
    assert capsys.readouterr().err == ""
    show(LocalEvent(kind="line", text="r00 | hello"))
    show(LocalEvent(kind="note", text="stopping"))
    show(LocalEvent(kind="event", text="WorkersCreated: 2"))
    show(LocalEvent(kind="status", job=job({"attempt": attempt()})))
    captured = capsys.readouterr()
    assert captured.out == "r00 | hello\n"
    assert captured.err.splitlines() == [
        "tj  | +0.0s digits: 2 workers with 1 process each; checkpoints in "
        f"{os.path.join('/ckpt', 'default', 'digits')}",
        "tj  | +0.0s stopping",
        "tj  | +0.0s attempt 1 started: 2 workers, 2 ranks [Started]",
    ]
