"""Advice names a setting as the one who asked sets it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from support.jobs import attempt, condition, failure, job
from trainjob.checkpoint import errors
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.cli.parser import build
from trainjob.launch.handover.config import CheckpointConfig, FailureConfig, RunConfig
from trainjob.launch.outcome.verdict import of_failed
from trainjob.screen.asked import _WORDS, Asker, in_words_of, job_in_words_of
from trainjob.screen.failure import Retry, explain
from trainjob_api import contract

SAID = "1 failure, failurePolicy.maxFailures is 0; first cause of the last: rank 1 on digits-1 raised ValueError: bad batch"


def failed() -> object:
    said = condition("Failed", "True", contract.REASON_LIMIT, SAID)
    return job({"attempt": attempt(state="Ended"), "conditions": [said], "lastFailure": failure()})


@pytest.mark.parametrize(
    ("text", "shell", "python"),
    [
        ("failurePolicy.maxFailures is 0", "--max-failures is 0", "FailureConfig.max_failures is 0"),
        ("(spec.checkpoint.storage)", "(--storage)", "(RunConfig.storage_path)"),
        ("resumeFrom is none: the job", "--fresh was given: the job", "resume_from_checkpoint is none: the job"),
        ("resumeFrom: there is", "--resume-from: there is", "resume_from_checkpoint: there is"),
        ("spec.checkpoint.onUploadFailure is", "--on-upload-failure is", "CheckpointConfig.on_upload_failure is"),
        ("(checkpoint.keep)", "(--keep)", "(CheckpointConfig.num_to_keep)"),
        ("on a cluster: spec.checkpoint.s3.region", *["on a cluster: spec.checkpoint.s3.region"] * 2),
        ("my.spec.checkpoint.storage2", *["my.spec.checkpoint.storage2"] * 2),
    ],
)
def test_a_field_has_the_name_of_who_asked(text: str, shell: str, python: str) -> None:
    assert in_words_of(Asker.SHELL, text) == shell
    assert in_words_of(Asker.PYTHON, text) == python
    assert in_words_of(Asker.MANIFEST, text) == text


@pytest.mark.parametrize("namespace, where", [("default", ""), ("team", " -n team")])
def test_a_full_disk_names_what_frees_it(tmp_path: Path, namespace: str, where: str) -> None:
    """`--keep` is about this run's checkpoints alone; what a next run resumes from is not offered."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    job = tmp_path / namespace / "digits"
    for id_ in ("1-1-2", "1-1-10", "1-1-11"):
        (job / layout.own_folder(CheckpointId.parse(id_))).mkdir(parents=True)
        if id_ != "1-1-11":
            (job / layout.manifest_key(CheckpointId.parse(id_))).write_text("{}")
    path = str(job / "checkpoints" / "1-1-11" / "model.pt")

    def said() -> str:
        return in_words_of(Asker.SHELL, errors.explain(full, "write", path, writing=True)[1])

    assert said().endswith(
        f"): `tj checkpoints rm digits 1-1-2{where}` removes its oldest checkpoint; keep fewer checkpoints of this run "
        "(--keep)."
    )
    (job / layout.manifest_key(CheckpointId.parse("1-1-2"))).unlink()
    assert "tj checkpoints rm" not in said() and said().endswith("; keep fewer checkpoints of this run (--keep).")


def test_all_names_exist() -> None:
    options = build().format_help() + "".join(
        action.format_help()
        for action in build()._subparsers._group_actions[0].choices.values()  # type: ignore
    )
    kinds = {"RunConfig": RunConfig, "CheckpointConfig": CheckpointConfig, "FailureConfig": FailureConfig}
    for _, option, argument in _WORDS:
        assert option is None or option.split()[0] in options
        kind, _, name = argument.rpartition(".")
        assert not kind or name in kinds[kind].__dataclass_fields__


def test_the_budget_is_told_in_the_words_of_the_shell_and_of_python() -> None:
    shown = explain(job_in_words_of(Asker.SHELL, failed()), Retry(command="tj run", script="t", storage="/s"))  # type: ignore
    assert "  RestartLimitExceeded: 1 failure, --max-failures is 0" in shown
    assert "[RestartLimitExceeded: 1 failure, FailureConfig.max_failures is 0]" in str(of_failed(failed()))  # type: ignore


def test_advice_is_for_who_asked() -> None:
    from trainjob.screen.failure import advice

    for asker, name in ((Asker.SHELL, "--storage"), (Asker.PYTHON, "RunConfig.storage_path")):
        retry = Retry(command="tj run", script="t", storage="/s", asker=asker)
        assert f"({name})" in advice(contract.REASON_STORAGE, None, retry)


def test_on_this_machine_memory_is_not_given_by_a_manifest() -> None:
    from trainjob.agent.processes.memory import WAY_OUT

    said = f"rank 1 on digits-1 was killed by SIGKILL: out of memory. The kernel killed it. {WAY_OUT}"
    entry = {"attempt": 1, "cause": "Started", "endCause": contract.REASON_OOM, "worldSize": 2, "message": said,
             "startedAt": "2030-01-01T00:00:00Z"}  # fmt: skip
    told = failure(reason=contract.REASON_OOM, message=said, traceback=None)
    found = job_in_words_of(Asker.SHELL, job({"history": [entry], "lastFailure": told}))
    assert found.status.history[0].message == said.removesuffix(f" {WAY_OUT}")
    assert found.status.last_failure is not None and found.status.last_failure.message == said.removesuffix(
        f" {WAY_OUT}"
    )
    assert job_in_words_of(Asker.MANIFEST, job({"history": [entry]})).status.history[0].message == said
