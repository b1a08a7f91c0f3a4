"""`tj list`, `status`, `logs`, `history`, `rm` and `run --resume-from`, `--gpus`, `--dry-run` on what jobs left here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Job
from support.checkpoint_cli import Shell
from support.jobs import attempt as an_attempt
from support.jobs import condition
from support.jobs import progress as a_progress
from support.launchers import WAITS, local_launcher
from support.trainjobs import document
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.reading.runs import write_end
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli import run as runs
from trainjob.cli.errors import AGAIN, with_command
from trainjob.cli.local import before, stop
from trainjob.cli.main import main
from trainjob.cli.parser import build
from trainjob.launch import job as jobs
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import drive, lock
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.registry import earlier, records
from trainjob.launch.local.registry.output import Keeper
from trainjob.launch.local.registry.records import Record
from trainjob_api import contract


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A machine of one's own, with the job `digits` in ./store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    folder = tmp_path / "store" / "default" / "digits"
    folder.mkdir(parents=True)
    store = open_store(str(folder))
    made = Shell(tmp_path, str(tmp_path / "store"), Job(tmp_path, store), capsys)
    made.run("uid-1")
    return made


def remember(here: Shell, name: str = "digits", **given: Any) -> Record:
    folder = here.folder / "store" / "default" / name
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(
        **{
            "name": name,
            "namespace": "default",
            "folder": str(folder),
            "command": ("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--name", name),
            "started": time.time() - 100,
            "ended": time.time() - 40,
            "outcome": "Complete",
            "output": str(folder / "output"),
            **given,
        }
    )
    records.write(record)
    return record


def test_jobs_are_listed_by_their_state(here: Shell) -> None:
    remember(here)
    remember(here, "later", outcome="Failed")
    assert here.tj("list", "--status", "failed", "-o", "name").out == "later\n"
    assert here.tj("list", "--status", "Failed,complete", "-o", "name").out.split() == ["later", "digits"]
    assert "no job of this machine is running (of all 2: tj list)" in here.tj("list", "--status", "running").out
    refused = here.tj("list", "-l", "team=ml")
    assert refused.code == contract.CLI_USAGE and "-l is for jobs of a cluster" in refused.err


def test_jobs_are_listed_the_newest_first_and_a_damaged_record_is_told(here: Shell) -> None:
    assert "no job ran on this machine yet" in here.tj("list").out
    remember(here, started=time.time() - 500)
    remember(here, "later", outcome="Failed")
    hurt = remember(here, "hurt")
    path = Path(records.folder_of(hurt.id)) / records.FILE
    path.write_text("{")
    shown = here.tj("list", "-o", "wide")
    assert [line.split()[:2] for line in shown.out.splitlines()] == [
        ["NAME", "STATUS"],
        ["later", "Failed"],
        ["digits", "Complete"],
    ]
    assert (
        "tj run train.py --name digits" in shown.out
        and "a record cannot be read" in shown.err
        and str(path) in shown.err
    )
    assert [each["status"] for each in json.loads(here.tj("list", "-o", "json").out)] == ["Failed", "Complete"]
    assert here.tj("list", "-o", "name").out == "later\ndigits\n"


def test_a_job_that_ends_as_it_is_looked_at_is_shown_with_its_last_step(
    here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="digits")).to_json()
    ended, running = (
        {"status": {"phase": phase, "attempt": an_attempt(), "progress": a_progress(step)}}
        for phase, step in (("Complete", 450), ("Running", 300))
    )
    record = remember(here, job={**made, **ended})
    read_before = replace(record, outcome=None, ended=None, job={**made, **running})
    monkeypatch.setattr(records, "find_all", lambda: ([read_before], []))
    assert here.tj("list").out.splitlines()[1].split()[:3] == ["digits", "Complete", "450/450"]
    (told,) = json.loads(here.tj("list", "-o", "json").out)
    assert (told["status"], told["job"]["status"]["progress"]["step"]) == ("Complete", 450)
    assert "step 450/450" in here.tj("status", "digits").out
    assert "step 300" not in here.tj("attach", "digits").err


def test_a_failed_job_says_what_to_mend_and_not_its_budget(here: Shell) -> None:
    status = {
        "conditions": [
            {"type": "Failed", "status": "True", "reason": "RestartLimitExceeded", "message": "1 failure",
             "lastTransitionTime": "2026-01-02T03:04:05Z"},
        ],
        "lastFailure": {
            "attempt": 1, "time": "2026-01-02T03:04:05Z", "reason": "UserCodeError", "rank": 0,
            "message": "rank 0 raised ValueError: bad batch", "traceback": 'File "/w/train.py", line 61, in f',
        },
    }  # fmt: skip
    made = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="digits")).to_json()
    remember(here, outcome="Failed", job={**made, "status": status})
    shown = here.tj("status", "digits").out
    assert "next: Fix /w/train.py:61." in shown and "`tj run train.py --name digits`" in shown


def test_a_job_whose_record_is_lost_is_found_by_its_folder(here: Shell) -> None:
    here.save("1-1-1")
    assert here.tj("status", "digits").code == contract.CLI_NOT_FOUND
    shown = here.tj("status", "digits", "--storage", "store")
    assert shown.code == contract.CLI_OK and str(here.folder / "store/default/digits") in shown.out


def test_a_name_that_is_stored_twice_is_no_guess(here: Shell) -> None:
    remember(here)
    other = here.folder / "other" / "default" / "digits"
    other.mkdir(parents=True)
    remember(here, folder=str(other))
    refused = here.tj("status", "digits")
    assert refused.code == contract.CLI_USAGE and "2 jobs of this machine are called digits" in refused.err
    assert "--storage" in refused.err and str(here.folder / "other") in refused.err
    assert str(other) in here.tj("status", "digits", "--storage", "other").out


def test_an_unknown_name_says_what_is_near_and_how_a_cluster_is_meant(here: Shell) -> None:
    remember(here)
    for words in (
        ["status"],
        ["logs"],
        ["history"],
        ["attach"],
        ["stop"],
        ["stack"],
        ["rm", "-y"],
        ["checkpoints", "list"],
    ):
        refused = here.tj(*words, "digit")
        assert refused.code == contract.CLI_NOT_FOUND, words
        assert "there is no job digit on this machine; near it: digits" in refused.err
        assert "-n NAMESPACE or --cluster" in refused.err


@pytest.mark.parametrize(
    ("sizes", "asked", "has"),
    [
        ((2,), "7", "2 ranks, from 0 to 1: none of 7 is among them"),
        ((2,), "2-5", "2 ranks, from 0 to 1: none of 2-5 is among them"),
        ((1,), "1", "rank 0 alone: no rank 1"),
        ((2,), "1-5", None),
        ((4, 2), "3", None),
    ],
)
def test_ranks_that_a_job_has_not_are_refused(here: Shell, sizes: tuple[int, ...], asked: str, has: str | None) -> None:
    """Any that an earlier, larger attempt had are its own; one that wrote nothing is no mistake."""
    *before, now = sizes
    old = [
        {"attempt": n, "cause": "x", "startedAt": "2026-01-02T03:04:05Z", "worldSize": size}
        for n, size in enumerate(before, 1)
    ]
    made = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="digits", workers=now)).to_json()
    record = remember(here, job={**made, "status": {"history": old}})
    keeper = Keeper(record.output, record.started)
    keeper.line("r00 | zero", 1)
    keeper.close()
    said = here.tj("logs", "digits", "--rank", asked)
    assert said.code == (contract.CLI_OK if has is None else contract.CLI_USAGE)
    assert (f"digits has {has}" if has else f"no line of rank {asked} is kept") in said.err


def test_an_option_that_names_a_cluster_means_one(here: Shell) -> None:
    remember(here)
    for option in (["-n", "team"], ["--cluster"], ["--context", "x"]):
        for words in (["list"], ["status", "digits"], ["logs", "digits"], ["checkpoints", "list", "digits"]):
            assert here.tj(*words, *option).code == contract.CLI_NO_ACCESS, (words, option)
    assert here.tj("list", "-A").code == contract.CLI_NO_ACCESS


def test_lines_are_shown_by_rank_and_attempt(here: Shell) -> None:
    record = remember(here)
    assert here.tj("logs", "digits").code == contract.CLI_NOT_FOUND
    keeper = Keeper(record.output, record.started)
    for attempt in (1, 2):
        for text in ("agent | hello", "r00 | zero", "r01 | one"):
            keeper.line(f"{text} {attempt}", attempt)
    keeper.close()
    assert here.tj("logs", "digits", "--attempt", "2").out == "agent | hello 2\nr00 | zero 2\nr01 | one 2\n"
    assert here.tj("logs", "digits", "--rank", "1").out == "r01 | one 1\ntj  | attempt 2\nr01 | one 2\n"
    said = here.tj("logs", "digits", "--rank", "7")
    assert said.err == "tj  | no line of rank 7 is kept; ranks that wrote some: 0, 1\n"
    wrong = here.tj("logs", "digits", "--rank", "one").err
    assert wrong.count("0,3-5") == 1 and "`tj status digits`" in wrong
    assert here.tj("logs", "digits", "--tail", "1").out == "r01 | one 2\n"
    assert here.tj("logs", "digits", "-f").out.count("\n") == 6 + 1, "of a job that is over it ends"
    assert "of these: 1, 2" in here.tj("logs", "digits", "--attempt", "3").err


def test_where_another_attempt_begins_stands_when_and_after_what(here: Shell) -> None:
    """Also where lines of the one before are left out, and of the attempt that runs."""
    at = [f"2026-01-02T03:0{minute}:05+00:00" for minute in range(3)]
    first = {"attempt": 1, "cause": "Started", "startedAt": at[0], "endedAt": at[1], "worldSize": 2}
    second = {**first, "attempt": 2, "cause": "KilledBySignal", "startedAt": at[1], "endedAt": at[2]}
    third = {"number": 3, "cause": "Evicted", "startedAt": at[2], "members": "0", "workers": 1, "worldSize": 2}
    made = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="digits")).to_json()
    status = {"history": [first, second], "attempt": {**third, "state": "Running"}}
    record = remember(here, job={**made, "status": status})
    keeper = Keeper(record.output, record.started)
    for attempt in (1, 2, 3):
        keeper.line(f"r00 | of {attempt}", attempt)
    keeper.close()
    when = [time.strftime("%H:%M:%S", time.localtime(datetime.fromisoformat(each).timestamp())) for each in at]
    marks = [f"tj  | attempt 2, begun {when[1]} [KilledBySignal]", f"tj  | attempt 3, begun {when[2]} [Evicted]"]
    whole = ["r00 | of 1", marks[0], "r00 | of 2", marks[1], "r00 | of 3"]
    assert here.tj("logs", "digits").out.splitlines() == whole
    assert here.tj("logs", "digits", "-f").out.splitlines() == whole
    assert here.tj("logs", "digits", "--tail", "2").out.splitlines() == ["r00 | of 2", *whole[3:]]


def test_history_shows_each_report(here: Shell) -> None:
    remember(here)
    lines = [
        {"kind": "start", "attempt": 1, "position": 0},
        {"kind": "report", "position": 1, "step": 3, "epoch": None, "time": 0.0, "metrics": {"loss": 0.25, "val": {"acc": 1}}},
        {"kind": "report", "position": 2, "step": 4, "epoch": 1, "time": 9.0, "metrics": {"loss": "NaN"}},
    ]  # fmt: skip
    assert here.job.store is not None
    here.job.store.put("history/1-1.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    shown = here.tj("history", "digits").out.splitlines()
    assert shown[0].split() == ["REPORT", "STEP", "EPOCH", "AT", "CHECKPOINT", "loss", "val.acc"]
    assert shown[1].split()[:2] == ["1", "3"] and shown[1].split()[-2:] == ["0.25", "1"]
    rows = [json.loads(line) for line in here.tj("history", "digits", "-o", "json", "--tail", "1").out.splitlines()]
    assert [row["position"] for row in rows] == [2]


def test_a_run_that_there_never_was_is_told_with_those_that_there_were(here: Shell) -> None:
    remember(here)
    here.run("uid-2")
    refused = here.tj("history", "digits", "--run", "9")
    assert refused.code == contract.CLI_NOT_FOUND
    assert "digits has no run 9" in refused.err and "of these: 1, 2" in refused.err
    assert "ATTEMPT" not in refused.out


def report(position: int, loss: float) -> str:
    row = {
        "kind": "report",
        "position": position,
        "step": position,
        "epoch": None,
        "time": 0.0,
        "metrics": {"loss": loss},
    }
    return json.dumps(row) + "\n"


def test_history_of_all_runs_says_which_run_a_report_is_of(here: Shell) -> None:
    here.run("uid-2")
    remember(here)
    assert here.job.store is not None
    here.job.store.put("history/1-1.jsonl", (report(1, 0.5) + report(2, 0.25)).encode())
    here.job.store.put("history/2-1.jsonl", report(3, 0.125).encode())
    shown = [line.split() for line in here.tj("history", "digits", "--all").out.splitlines()]
    assert shown[0][:3] == ["RUN", "REPORT", "STEP"]
    assert [(row[0], row[1], row[-1]) for row in shown[1:]] == [
        ("1", "1", "0.5"),
        ("1", "2", "0.25"),
        ("2", "3", "0.125"),
    ]
    rows = here.tj("history", "digits", "--all", "-o", "json", "--tail", "2").out.splitlines()
    assert [(row["run"], row["position"]) for row in map(json.loads, rows)] == [(1, 2), (2, 3)]
    assert [line.split()[0] for line in here.tj("history", "digits").out.splitlines()] == ["REPORT", "3"]
    assert "not allowed with" in here.tj("history", "digits", "--all", "--run", "1").err


def test_the_attempts_of_the_newest_run_are_not_shown_for_another(here: Shell) -> None:
    here.run("uid-2")
    began = {"partsMs": {"decided": 30}, "number": 1, "run": 2, "cause": "Started", "worldSize": 2, "members": "0-1"}
    began |= {"state": "Running", "workers": 2, "startedAt": "2030-01-01T00:00:00Z"}
    remember(here, job=document({"status": {"attempt": began}}))
    assert (
        "BEGAN BY" in here.tj("history", "digits").out and "BEGAN BY" in here.tj("history", "digits", "--run", "2").out
    )
    assert here.tj("history", "digits", "--run", "1").out == "digits has reported nothing in run 1\n"


@pytest.mark.parametrize(
    "words",
    [["checkpoints", "list"], ["checkpoints", "show"], ["model", "get", "-o", "m"], ["history"]],
    ids=lambda words: " ".join(words),
)
def test_a_folder_that_is_not_there_is_told_in_a_sentence(here: Shell, words: list[str]) -> None:
    """Removed by hand, or on a volume that is not mounted: not an empty job."""
    record = remember(here)
    assert record.folder is not None
    shutil.rmtree(record.folder)
    command, *options = words
    at = options.index("-o") if "-o" in options else len(options)
    refused = here.tj(command, *options[:at], "digits", *options[at:])
    assert refused.code == contract.CLI_NOT_FOUND, refused
    assert record.folder in refused.err and "its volume is not mounted" in refused.err
    resumed = here.tj("run", "train.py", "--name", "next", "--resume-from", "digits")
    assert resumed.code != contract.CLI_OK and "its volume is not mounted" in resumed.err
    status = here.tj("status", "digits").out
    assert "not there now" in status and "tj model get" not in status
    assert here.tj("rm", "digits", "--yes").code == contract.CLI_OK and records.find_all() == ([], [])


@pytest.mark.parametrize(("outcome", "phase"), [("Stopped", "Suspended"), (None, "Running")], ids=["stopped", "killed"])
def test_a_job_that_is_over_is_not_shown_as_its_launcher_saw_it_last(
    here: Shell, outcome: str | None, phase: str
) -> None:
    workers = {"ready": 2, "desired": 2}
    remember(here, outcome=outcome, job=document({"status": {"phase": phase, "workers": workers}}))
    shown = here.tj("status", "digits").out.splitlines()
    word = outcome or "Killed"
    assert shown[0].split()[-1] == word and shown[1].split()[0] == word
    assert phase not in " ".join(shown[:3]) and "2/2 workers" not in shown[1]


@pytest.mark.parametrize(("outcome", "word"), [(None, "Killed"), ("Stopped", "Stopped")])
def test_what_workers_stored_as_they_ended_is_the_newest(here: Shell, outcome: str | None, word: str) -> None:
    here.save("1-1-1", "1-1-2")
    latest = {"id": "1-1-1", "level": "Durable"}
    progress = {"step": 13, "totalSteps": 40, "percent": 32, "lastReportTime": "2026-01-02T03:04:05Z"}
    told = {"status": {"phase": "Running", "checkpoint": {"latest": latest}, "progress": progress}}
    remember(here, outcome=outcome, job=document(told))
    row = next(line for line in here.tj("list").out.splitlines() if line.startswith("digits"))
    assert word in row and "1-1-2" in row and "1-1-1" not in row and "20/40" in row
    shown = here.tj("status", "digits").out
    assert "checkpoint 1-1-2 at step 20, stored by the workers as they ended" in shown
    assert "checkpoint 1-1-1" not in shown, "there is one newest"
    assert "step 20/40 (50%)" in shown and "step 13" not in shown
    remember(here, job=document(told))
    row = next(line for line in here.tj("list").out.splitlines() if line.startswith("digits"))
    assert "Complete" in row and "1-1-1" in row


def test_a_name_is_nothing_for_list_and_one_of_two_ways_for_rm(here: Shell) -> None:
    remember(here)
    refused = here.tj("list", "digits")
    assert refused.code == contract.CLI_USAGE and "`tj status digits`" in refused.err
    refused = here.tj("rm", "digits", "--older-than", "1h")
    assert refused.code == contract.CLI_USAGE and "two ways to say which jobs" in refused.err


@pytest.mark.parametrize("output", [[], ["-o", "json"]], ids=["text", "json"])
def test_the_attempts_of_a_job_without_storage_are_an_answer(here: Shell, output: list[str]) -> None:
    goodput = {"at": "2030-01-01T00:00:00Z", "settledAt": "2030-01-01T00:00:00Z", "summary": "75.0%"}
    ended = document({"status": {"goodput": {**goodput, "seconds": {"productive": 3.0, "down": 1.0}}}})
    remember(here, "digits", folder=None, job=ended)
    assert here.tj("list", "-o", "name").out == "digits\n" and here.tj("status", "digits").code == contract.CLI_OK
    shown = here.tj("history", "digits", *output)
    assert shown.code == contract.CLI_OK and "75.0%" in shown.out
    assert shown.err.startswith("tj  | digits had no storage, and its reports are gone with it")
    assert here.tj("rm", "digits", "--yes").code == contract.CLI_OK and records.find_all() == ([], [])
    remember(here, "other", folder=None)
    refused = here.tj("history", "other", *output)
    assert (refused.code, refused.out) == (contract.CLI_NOT_FOUND, "")
    assert "other had no storage" in refused.err


def test_delete_is_for_a_clusters_jobs_and_names_the_commands_for_those_of_this_machine(here: Shell) -> None:
    refused = here.tj("delete", "digits")
    assert refused.code == contract.CLI_NO_ACCESS and "there is no kubeconfig" in refused.err
    remember(here)
    refused = here.tj("delete", "digits")
    assert refused.code == contract.CLI_NO_ACCESS
    assert "digits is a job of this machine" in refused.err
    assert "`tj rm digits`" in refused.err and "`tj stop digits`" in refused.err
    for option in (["-n", "team"], ["--context", "x"]):
        assert "there is no kubeconfig" in here.tj("delete", "digits", *option).err, "that means a cluster"


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["suspend", "digits"], "`tj stop digits` ends it; `tj run train.py --name digits` resumes from what"),
        (["resume", "digits"], "next: `tj run train.py --name digits` resumes from what it saved"),
        (["restart", "digits"], "`tj stop digits`, then `tj run train.py --name digits`"),
        (["scale", "digits", "3"], "`tj stop digits`, then `tj run train.py --name digits` with --workers 3"),
        (["cancel", "digits"], "`tj stop digits` ends it and keeps what it saved"),
        (["wait", "digits"], "`tj attach digits` shows it to its end"),
        (["events", "digits"], "`tj status digits` shows its attempts"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_only_a_clusters_job_takes_names_what_this_machines_job_has(
    here: Shell, words: list[str], way_out: str
) -> None:
    fresh = ("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--name", "digits", "--fresh")
    remember(here, outcome="Stopped", command=fresh)
    refused = here.tj(*words)
    assert refused.code == contract.CLI_NO_ACCESS
    assert "digits is a job of this machine" in refused.err and way_out in refused.err


@pytest.mark.parametrize("verb", ["suspend", "resume", "restart"])
def test_a_completed_job_is_not_said_to_resume(here: Shell, verb: str) -> None:
    remember(here)
    refused = here.tj(verb, "digits")
    assert "`tj run train.py --name digits --resume-from digits` trains on" in refused.err


@pytest.mark.parametrize("outcome", ["Stopped", "Failed", None])
def test_what_resumes_a_job_has_no_fresh_in_it(here: Shell, outcome: str | None) -> None:
    words = ("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--fresh", "--name", "digits", "--", "--fresh")
    here.save("1-1-1")
    failed = {"conditions": [condition("Failed", "True", "RestartLimitExceeded", "1 failure")]}
    remember(here, outcome=outcome, run=1, command=words, job=document({"status": {"phase": "Failed", **failed}}))
    shown = here.tj("status", "digits").out
    assert "`tj run train.py --name digits -- --fresh`" in shown and "`tj run train.py --fresh" not in shown


@pytest.mark.parametrize(
    ("words", "outcome", "warned"),
    [
        ("other.py", "Stopped", True),
        ("other.py", None, True),
        ("./train.py", "Stopped", False),
        ("other.py", "Complete", False),
        ("other.py --fresh", "Stopped", False),
    ],
)
def test_another_script_by_the_name_of_a_run_that_did_not_complete_is_told(
    here: Shell, words: str, outcome: str | None, warned: bool
) -> None:
    remember(here, outcome=outcome, run=1)
    given = build().parse_args(["run", *words.split(), "--name", "digits", "--storage", here.storage])
    given.script_args = []
    said = before.of_another_script(given, runs.build(given))
    assert bool(said) == warned
    assert not warned or said.startswith("warning: the run of this name before was of train.py and did not complete")


@pytest.mark.parametrize(
    ("words", "outcome", "offered"),
    [
        ("train.py --workers 2", None, True),
        ("train.py --workers 2", "Stopped", True),
        ("train.py --workers 2", "Complete", False),
        ("train.py --workers 2", "Failed", False),
        ("other.py --workers 2", None, False),
        ("train.py --workers 2 --name own", None, False),
        ("train.py --workers 2 --fresh", None, False),
    ],
)
def test_a_job_without_a_name_that_was_left_is_offered_to_who_starts_it_again(
    here: Shell, words: str, outcome: str | None, offered: bool
) -> None:
    command = ("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--workers", "2")
    here.save("1-1-2")
    remember(here, outcome=outcome, run=1, ended=None, cwd=os.getcwd(), command=command)
    given = build().parse_args(["run", *words.split()])
    given.words, given.script_args = ["run", *words.split()], []
    state = "stopped" if outcome else "killed"
    said = (
        f"the run of this command before was {state} at checkpoint 1-1-2: `tj run train.py --workers 2 --name digits`"
    )
    assert before.of_one_left(given).startswith(said) is offered


def test_a_failed_job_is_shown_with_what_its_workers_stored_last(here: Shell) -> None:
    here.save("1-1-1", "1-1-2")
    remember(here, outcome="Failed", run=1, job=document({"status": {"phase": "Failed"}}))
    assert "1-1-2" in here.tj("list").out


def test_a_job_is_removed_with_its_data_and_asks_first(here: Shell) -> None:
    record = remember(here)
    here.save("1-1-1")
    refused = here.tj("rm", "digits")
    assert (
        refused.code == contract.CLI_USAGE
        and "would be removed for good" in refused.err
        and "digits: the job" in refused.err
    )
    done = here.tj("rm", "digits", "--yes")
    assert done.code == contract.CLI_OK and done.out.startswith("digits is removed, ")
    assert not Path(str(record.folder)).exists() and records.find_all() == ([], [])


def test_of_a_job_on_s3_the_command_that_removes_it_can_be_pasted(here: Shell) -> None:
    remember(here, folder="s3://bucket/my runs/default/digits")
    refused = here.tj("rm", "digits", "--yes")
    assert refused.code != contract.CLI_OK
    assert "`aws s3 rm --recursive 's3://bucket/my runs/default/digits'` all of it" in refused.err


def test_what_runs_and_what_is_not_a_jobs_is_left_alone(here: Shell) -> None:
    record = remember(here, pid=os.getpid(), born=lock.started(os.getpid()), outcome=None, ended=None)
    with JobLock(str(record.folder)):
        refused = here.tj("rm", "digits", "--yes")
        assert refused.code == contract.CLI_ERROR and "digits runs and stays" in refused.err
    (here.folder / "store/default/digits/thesis.txt").write_text("mine")
    refused = here.tj("rm", "digits", "--yes")
    assert refused.code == contract.CLI_ERROR and "thesis.txt" in refused.err
    assert (here.folder / "store/default/digits/thesis.txt").exists()
    assert "say which jobs" in here.tj("rm", "--yes").err


def test_of_several_names_each_that_can_be_done_is_done(here: Shell) -> None:
    record = remember(here, pid=os.getpid(), born=lock.started(os.getpid()), outcome=None, ended=None)
    remember(here, "one")
    remember(here, "two")
    with JobLock(str(record.folder)):
        said = here.tj("rm", "one", "digits", "tow", "two", "--yes")
    assert said.code == contract.CLI_NOT_FOUND, "the worst of them"
    assert [line.split(",")[0] for line in said.out.splitlines()] == ["one is removed", "two is removed"]
    assert "digits runs and stays" in said.err and "there is no job tow on this machine; near it: two" in said.err
    remember(here, "done")
    refused = here.tj("stop", "tow", "done")
    assert refused.code == contract.CLI_NOT_FOUND
    assert "there is no job tow" in refused.err and "done does not run: it is Complete" in refused.err


def test_a_record_that_points_elsewhere_removes_nothing_there(here: Shell) -> None:
    """As a damaged or foreign record might."""
    treasure = here.folder / "treasure"
    (treasure / "runs").mkdir(parents=True)
    remember(here, folder=str(treasure))
    refused = here.tj("rm", "digits", "--yes")
    assert refused.code == contract.CLI_ERROR and "is no folder of a job alone" in refused.err
    assert (treasure / "runs").is_dir()


def test_old_jobs_go_by_age_and_the_best_checkpoint_can_stay(here: Shell) -> None:
    remember(here, ended=time.time() - 40 * 86400)
    remember(here, "young")
    here.save("1-1-1", "1-1-2", "1-1-3")
    done = here.tj("rm", "--older-than", "30d", "--keep-best", "--yes")
    assert done.code == contract.CLI_OK and "young" not in done.out and "digits is removed" not in done.out
    assert done.out.startswith("2 checkpoints of digits are removed, ") and done.out.endswith("; 1-1-3 stays\n")
    assert [line.split()[0] for line in here.checkpoints("list", "-a").out.splitlines()[1:]] == ["1-1-3"]
    assert "there is nothing to remove" in here.tj("rm", "--older-than", "30d", "--keep-best", "--yes").err
    assert here.tj("rm", "--older-than", "30d", "--yes").code == contract.CLI_OK
    assert [each.name for each in records.find_all()[0]] == ["young"]
    assert "is no age" in here.tj("rm", "--older-than", "soon").err


def test_a_checkpoint_is_named_behind_its_job_as_in_resume_from(here: Shell) -> None:
    remember(here)
    here.save("1-1-1", "1-1-2")
    done = here.tj("model", "get", "digits/1-1-1", "-o", str(here.folder / "m"))
    assert done.code == contract.CLI_OK and "1-1-1 (step 10): the one that is named" in done.err
    assert os.listdir(here.folder / "m")
    gone = here.tj("model", "get", "digits/1-1-7", "-o", str(here.folder / "n"))
    assert gone.code == contract.CLI_NOT_FOUND and "1-1-7" in gone.err
    (here.folder / "digits" / "1-1-1").mkdir(parents=True)
    assert here.tj("checkpoints", "show", "digits/1-1-1").code != contract.CLI_OK, "a folder that is there is meant"


# --- tj run -----------------------------------------------------------------------------------------------------------


def built(*words: str) -> Any:
    args = build().parse_args(["run", *words])
    args.script_args, args.words = [], ["run", *words]
    return runs.build(args).to_json()["spec"]


def test_a_run_goes_on_from_a_job_a_checkpoint_or_a_place(here: Shell) -> None:
    remember(here)
    here.save("1-1-1", "1-1-2")
    folder = here.folder / "store/default/digits/checkpoints"
    for what, wanted in (
        ("digits", "1-1-2"),
        ("digits/1-1-1", "1-1-1"),
        ("./store/default/digits/checkpoints/1-1-1", "1-1-1"),
    ):
        assert built("x.py", "--resume-from", what)["checkpoint"]["resumeFrom"] == str(folder / wanted)
    own = built("x.py", "--name", "digits", "--storage", "store", "--resume-from", "1-1-1")
    assert own["checkpoint"]["resumeFrom"] == str(folder / "1-1-1")
    again = built("x.py", "--name", "digits", "--storage", "store", "--resume-from", "digits")
    assert again["checkpoint"]["resumeFrom"] == str(folder / "1-1-2")
    bare = built("x.py", "--resume-from", os.path.relpath(folder / "1-1-2"))
    assert bare["checkpoint"]["resumeFrom"] == os.path.abspath(folder / "1-1-2"), "a path without ./ is one too"
    assert built("x.py", "--resume-from", "s3://bucket/x")["checkpoint"]["resumeFrom"] == "s3://bucket/x"


@pytest.mark.parametrize(
    ("words", "said", "step"),
    [
        (("--resume-from", "1-1-1"), "there is no --name", "--resume-from NAME/1-1-1"),
        (("--resume-from", "nobody"), "there is no job nobody on this machine", "URI of a checkpoint will do too"),
        (("--resume-from", "digits"), "digits has no checkpoint to resume from", "--all"),
    ],
)
def test_what_cannot_be_gone_on_from_says_what_to_type(
    here: Shell, words: tuple[str, ...], said: str, step: str
) -> None:
    remember(here)
    refused = here.tj("run", "x.py", *words)
    assert said in refused.err and step in refused.err.splitlines()[-1]


def test_gpus_are_each_workers_and_beside_a_manifest_win(here: Shell) -> None:
    spec = built("x.py", "--workers", "2", "--gpus", "4")
    assert spec["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert "resources" not in built("x.py")["template"]["spec"]["containers"][0]
    (here.folder / "x.py").write_text("")
    refused = here.tj("run", "x.py", "--gpus", "64", "--dry-run")
    assert refused.code == contract.CLI_ERROR and "lower --gpus or --workers, or train on" in refused.err
    assert "next: `tj run x.py --gpus 0 --dry-run` trains on the CPU\n" in refused.err


def test_a_dry_run_prints_the_job_and_starts_nothing(here: Shell) -> None:
    import yaml

    (here.folder / "x.py").write_text("print('never')")
    shown = here.tj("run", "x.py", "--name", "new", "--workers", "3", "--dry-run")
    assert shown.code == contract.CLI_OK
    document = yaml.safe_load(shown.out)
    assert document["metadata"]["name"] == "new" and document["spec"]["workers"] == 3
    assert "nothing was started" in shown.err and records.find_all() == ([], [])
    assert "does not exist" in here.tj("run", "y.py", "--dry-run").err
    refused = here.tj("run", "x.py", "--track", "comet", "--dry-run")
    assert refused.code == contract.CLI_USAGE and "there is no tracker 'comet'" in refused.err


def test_a_dry_run_tells_where_the_trackers_would_write(here: Shell) -> None:
    (here.folder / "x.py").write_text("print('never')")
    given = ("run", "x.py", "--name", "new", "--storage", "kept", "--track", "csv", "--track", "tensorboard=boards")
    shown = here.tj(*given, "--dry-run")
    folder = here.folder.resolve()
    told = f"reports would go to csv: {folder}/kept/default/new/metrics.csv; tensorboard: {folder}/boards"
    assert shown.code == contract.CLI_OK and told in shown.err
    assert not list(here.folder.rglob("metrics.csv")) and not (here.folder / "boards").exists()


def test_a_checkpoint_that_is_not_there_starts_nothing(here: Shell) -> None:
    remember(here)
    here.save("1-1-1")
    (here.folder / "x.py").write_text("")
    refused = here.tj("run", "x.py", "--resume-from", "digits/1-1-2", "--dry-run")
    assert refused.code == contract.CLI_NOT_FOUND and "digits has no checkpoint 1-1-2; near it: 1-1-1" in refused.err
    assert refused.err.splitlines()[-1] == "next: `tj checkpoints list digits --all` shows those that it has"


def test_in_place_of_a_damaged_checkpoint_the_one_before_is_offered(here: Shell) -> None:
    remember(here)
    here.save("1-1-1", "1-1-2")
    (here.folder / "x.py").write_text("")
    checkpoints = here.folder / "store/default/digits/checkpoints"
    (checkpoints / "1-1-2" / "model.pt").write_bytes(b"")
    refused = here.tj("run", "x.py", "--resume-from", "digits/1-1-2", "--dry-run", "--", "--resume-from", "x")
    assert f"--resume-from: {checkpoints}/1-1-2/model.pt is damaged" in refused.err
    again = f"tj run x.py --resume-from {checkpoints}/1-1-1 --dry-run -- --resume-from x"
    assert refused.err.splitlines()[-1] == f"next: `{again}`"
    assert here.tj("run", "x.py", f"--resume-from={checkpoints}/1-1-1", "--dry-run").code == contract.CLI_OK


def test_verbose_is_a_variable_that_a_user_may_set(here: Shell) -> None:
    (here.folder / "x.py").write_text("")
    shown = here.tj("run", "x.py", "--verbose", "--dry-run")
    assert shown.code == contract.CLI_OK and contract.ENV_VERBOSE in shown.out


def test_background_jobs_need_a_place_to_be_found_again(here: Shell) -> None:
    assert main(["run", "x.py", "--detach", "--in-process"]) == contract.CLI_USAGE


def test_what_to_type_next_fits_what_the_job_saved(here: Shell) -> None:
    """A job without a checkpoint has no model to bring and nothing to resume from."""
    made = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="digits")).to_json()
    saved = {"checkpoint": {"latest": {"id": "1-1-2", "time": "2026-01-02T03:04:05Z"}}}
    again = "`tj run train.py --name digits`"
    for outcome, status, said in (
        ("Complete", saved, "next: `tj model get digits -o DIR` brings its model"),
        ("Complete", {}, f"next: `tj history digits` has its metrics, {again} starts it again"),
        ("Stopped", saved, f"next: {again} resumes from its newest checkpoint"),
        ("Stopped", {}, f"next: {again} starts it again"),
    ):
        remember(here, outcome=outcome, job={**made, "status": status})
        shown = here.tj("status", "digits").out
        assert said in shown
        assert status or ("tj model get" not in shown and "resume" not in shown)


def test_a_completed_job_whose_loss_became_nan_is_not_trained_on_from_its_end(here: Shell) -> None:
    seen = {"metric": "loss", "value": "NaN", "step": 20, "position": 2, "count": 4}
    for progress, offered in (({}, True), ({"position": 2, "nonFinite": seen, "metrics": {}}, False)):
        latest = {"latest": {"id": "1-1-2", "level": "Durable"}}
        remember(here, job=document({"status": {"phase": "Complete", "checkpoint": latest, "progress": progress}}))
        shown = here.tj("status", "digits").out
        assert "`tj model get digits -o DIR` brings its model" in shown
        assert ("`--resume-from digits` trains on from it" in shown) is offered


@pytest.mark.parametrize(("outcome", "word"), [("Stopped", "Stopped"), (None, "Killed"), ("Failed", "Failed")])
def test_a_run_that_saved_nothing_goes_on_from_the_checkpoint_of_the_one_before(
    here: Shell, outcome: str | None, word: str
) -> None:
    """It is told, as the next start does it."""
    here.save("1-1-1", "1-1-2")
    here.run("uid-2")
    remember(here, outcome=outcome, run=2, job=document({"status": {"phase": "Running"}}))
    row = next(line for line in here.tj("list").out.splitlines() if line.startswith("digits"))
    assert row.split()[1:5] == [word, "2", "20", "1-1-2"]
    shown = here.tj("status", "digits").out
    assert "nothing new; checkpoint 1-1-2 is there from before" in shown and "as they ended" not in shown
    assert "`tj run train.py --name digits` resumes from checkpoint 1-1-2" in shown and "starts it again" not in shown
    assert "resumes from checkpoint 1-1-2" in here.tj("attach", "digits").err or outcome == "Failed"


def resumed(run: int) -> dict[str, Any]:
    began = {**an_attempt(), "run": run, "resumedFrom": "1-1-2", "state": "Ended"}
    return document({"status": {"phase": "Complete", "attempt": began}})


def test_a_run_that_had_nothing_left_to_do_has_the_checkpoint_that_it_began_with(here: Shell) -> None:
    here.save("1-1-1", "1-1-2")
    here.run("uid-2")
    remember(here, run=2, job=resumed(2))
    row = next(line for line in here.tj("list").out.splitlines() if line.startswith("digits"))
    assert row.split()[1:5] == ["Complete", "2", "20", "1-1-2"]
    shown = here.tj("status", "digits").out
    assert "nothing new; checkpoint 1-1-2 is there from before, at step 20\n" in shown
    assert "`tj model get digits -o DIR` brings its model" in shown
    assert here.tj("model", "get", "digits", "-o", str(here.folder / "m")).code == contract.CLI_OK


def test_what_such_a_run_began_with_in_another_folder_is_not_called_its_own(here: Shell) -> None:
    here.save("1-1-1", "1-1-2")
    other = open_store(f"{here.storage}/default/other")
    settle(other, "uid-3", f"{here.uri}/checkpoints/1-1-2", [])
    remember(here, "other", run=1, job=resumed(1))
    assert "1-1-2" not in here.tj("list").out
    shown = here.tj("status", "other").out
    assert "is there from before" not in shown and "tj model get" not in shown


def test_a_run_that_was_stopped_before_it_had_a_number_has_no_checkpoint_of_another(here: Shell) -> None:
    record = remember(here, run=1, started=time.time() - 300)
    here.save("1-1-1")
    earlier.keep(record.id)
    remember(here, outcome="Stopped", started=time.time() - 50, ended=time.time() - 49)
    as_json = [json.loads(line) for line in here.tj("history", "digits", "-o", "json").out.splitlines()]
    assert next(each["checkpoint"] for each in as_json if each.get("kind") == "run") is None
    shown = here.tj("status", "digits").out
    assert "checkpoint 1-1-1, stored by the workers" not in shown
    assert "nothing new; checkpoint 1-1-1 is there from before" in shown


def test_a_run_that_never_came_to_storage_has_nothing_of_the_one_after_it(here: Shell) -> None:
    record = remember(here, outcome="Stopped", started=time.time() - 300, ended=time.time() - 299)
    earlier.keep(record.id)
    here.save("1-1-1")
    remember(here, outcome="Stopped", run=1)
    first, second = here.tj("list", "--runs").out.splitlines()[1:3]
    assert "1-1-1" in first and "1-1-1" not in second


def test_a_run_that_began_afresh_and_saved_nothing_starts_again(here: Shell) -> None:
    here.save("1-1-1")
    settle(here.job.store, "uid-2", "none", [])
    remember(here, outcome="Stopped", run=2, job=document({"status": {"phase": "Running"}}))
    assert "1-1-1" not in here.tj("list").out
    shown = here.tj("status", "digits").out
    assert "starts it again" in shown and "1-1-1" not in shown


def test_a_job_that_has_ended_is_attached_to_with_how_it_ended_and_nothing_before(here: Shell) -> None:
    remember(here, outcome="Stopped")
    shown = here.tj("attach", "digits")
    assert shown.code == contract.CLI_STOPPED and "started" not in shown.err
    assert shown.err.splitlines()[0].startswith("digits was stopped after")


def test_what_continues_an_unnamed_job_has_the_name_that_was_made_for_it(here: Shell) -> None:
    words = ("/usr/bin/python", "/usr/bin/tj", "run", "train.py", "--workers", "2", "--", "--name", "x")
    remember(here, outcome="Stopped", command=words)
    assert "next: `tj run train.py --workers 2 --name digits -- --name x` " in here.tj("status", "digits").out
    remember(here, outcome="Stopped", command=("/usr/bin/python", "train.py"))
    assert "next: `python train.py` " in here.tj("status", "digits").out


def test_history_answers_what_a_person_asks_and_has_the_parts_on_request(here: Shell) -> None:
    ended = {
        "attempt": 1,
        "cause": "Started",
        "endCause": "KilledBySignal",
        "worldSize": 2,
        "startedAt": "2030-01-01T00:00:00Z",
        "endedAt": "2030-01-01T00:01:05Z",
        "lostSeconds": 3.2,
        "message": "rank 1 was killed by SIGKILL",
        "partsMs": {"decided": 100, "firstStep": 900},
    }
    remember(here, job=document({"status": {"history": [ended]}}))
    first = here.tj("history", "digits").out
    assert "rank 1 was killed by SIGKILL" in first and "3.2s" in first and "DECIDED" not in first
    assert "DECIDED" in here.tj("history", "digits", "--parts").out
    (found,) = (
        row for row in map(json.loads, here.tj("history", "digits", "-o", "json").out.splitlines()) if "attempt" in row
    )
    assert (found["message"], found["lostSeconds"]) == ("rank 1 was killed by SIGKILL", 3.2)


def running(here: Shell, **status: Any) -> Record:
    """As its launcher wrote it last, by this process."""
    began = {
        "number": 2,
        "run": 1,
        "cause": "Started",
        "worldSize": 1,
        "members": "0",
        "state": "Running",
        "workers": 1,
    }
    attempt = {"attempt": {**began, "startedAt": "2030-01-01T00:00:00Z"}}
    job = document({"status": {"phase": "Running", **attempt, **status}})
    return remember(here, pid=os.getpid(), born=lock.started(os.getpid()), outcome=None, ended=None, job=job)


def cut_off(here: Shell, told: dict[str, Any] | None = None, **given: Any) -> Record:
    """Run 1, whose record its launcher wrote last at step 30: `1-1-5` at step 50 came after that. `told`: of its
    status, beside.
    """
    here.save("1-1-5")
    (manifest,) = Path(here.storage).glob("default/digits/checkpoints/1-1-5/.trainjob/manifest.json")
    stored = json.loads(manifest.read_text())["time"]
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stored - 60))
    attempt = {"number": 1, "run": 1, "cause": "Started", "worldSize": 1, "members": "0", "workers": 1}
    progress = {"position": 3, "step": 30, "totalSteps": 90, "lastReportTime": began}
    status = {"attempt": {**attempt, "state": "Running", "startedAt": began}, "progress": progress, **(told or {})}
    job = document({"metadata": {"name": "digits"}, "status": status})
    return remember(here, **{"outcome": None, "ended": None, "started": stored - 70, "job": job, **given})


def test_of_a_killed_launcher_the_newest_checkpoint_says_how_far_and_how_long(here: Shell) -> None:
    """Its workers stored it after the last that it wrote of the job."""
    cut_off(here)
    assert here.tj("list").out.splitlines()[1].split()[:5] == ["digits", "Killed", "1", "50/90", "1-1-5"]
    assert here.tj("list").out.splitlines()[1].split()[-2] == "1m10s"
    shown = here.tj("status", "digits").out
    assert "checkpoint 1-1-5 at step 50, stored by the workers" in shown and "ETA" not in shown
    (row,) = [line for line in here.tj("history", "digits").out.splitlines() if line.startswith("1  ")]
    assert "1m00s" in row and "Killed" in row


def test_a_job_that_its_workers_completed_after_its_launcher_was_killed_is_complete(here: Shell) -> None:
    """`tj run` of that name begins it anew: what else told of it said that it resumes."""
    cut_off(here)
    assert "resumes from its newest checkpoint" in here.tj("status", "digits").out
    write_end(here.job.store, 1, {})
    cells = here.tj("list").out.splitlines()[1].split()
    assert cells[:5] == ["digits", "Complete", "1", "50/90", "1-1-5"] and cells[-2] == "1m10s"
    shown = here.tj("status", "digits").out
    assert "digits   on this machine   Complete" in shown and "`tj model get digits -o DIR`" in shown
    assert "resumes from" not in shown and "Killed" not in shown and "checkpoint 1-1-5 at step 50" in shown
    said = here.tj("attach", "digits")
    assert said.code == contract.CLI_OK and "digits completed in 1m10s" in said.err
    assert said.err.splitlines()[1] == "  checkpoint 1-1-5 is saved", "and not that none ever was"
    (row,) = [line for line in here.tj("history", "digits").out.splitlines() if line.startswith("1  ")]
    assert "1m00s" in row and "Complete" in row
    assert here.tj("list", "--status", "complete", "-o", "name").out == "digits\n"
    assert "it is Complete" in here.tj("stop", "digits").err


def test_a_stopped_run_that_its_workers_completed_starts_again(here: Shell) -> None:
    latest = {"checkpoint": {"latest": {"id": "1-1-5", "level": "Durable"}}}
    cut_off(here, latest, outcome="Stopped", ended=time.time())
    assert "resumes from its newest checkpoint" in here.tj("status", "digits").out
    write_end(here.job.store, 1, {})
    assert "`tj run train.py --name digits` starts it again" in here.tj("status", "digits").out


def test_a_stop_of_a_launcher_that_ctrl_z_has_stopped_says_so_and_keeps_to_its_limit(
    here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here.folder / "store" / "default" / "digits"
    launcher, _ = local_launcher(str(folder), WAITS)
    record = remember(here, pid=launcher.pid, born=lock.started(launcher.pid), outcome=None, ended=None)
    launcher.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, launcher.pid, os.WSTOPPED)
    monkeypatch.setattr(stop, "SAID_AFTER_S", 0.0)
    monkeypatch.setattr(drive, "LONGEST_STOP_S", 0.0)
    try:
        said = here.tj("stop", "digits")
        assert said.code == contract.CLI_TIMEOUT and records.is_asked_to_stop(record.id)
        first, *_ = said.err.splitlines()
        assert f"its launcher (pid {launcher.pid}) was stopped by a signal, as by Ctrl-Z" in first
        assert "60 s" not in said.err and said.err.count(f"kill -CONT {launcher.pid}") == 2
    finally:
        launcher.send_signal(signal.SIGCONT)
        launcher.communicate()


def test_what_follows_a_stop_finds_the_name_free(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the job ended is written before its launcher has put all away."""
    launcher, _ = local_launcher(str(here.folder / "store" / "default" / "digits"), WAITS)
    own = {"pid": launcher.pid, "born": lock.started(launcher.pid)}
    record = remember(here, **own, outcome=None, ended=None)
    comes = [
        lambda: remember(here, **own, started=record.started, outcome="Stopped", ended=time.time()),
        launcher.communicate,
    ]
    monkeypatch.setattr(time, "sleep", lambda seconds: comes.pop(0)())
    assert here.tj("stop", "digits").code == contract.CLI_OK and comes == []


def test_what_a_running_job_waits_for_is_said_with_since_when(here: Shell) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 7230))
    said = "Attempt 2 cannot begin yet, the job's storage is tried again: likely the store does not answer"
    held = {"type": "Degraded", "status": "True", "reason": "AgentWarning", "message": said}
    record = running(here, conditions=[{**held, "lastTransitionTime": since}])
    with JobLock(str(record.folder)):
        listed = here.tj("list").out.splitlines()
        assert listed[0].split()[-1] == "WARNING" and "for 2h00m: Attempt 2 cannot begin yet" in listed[1]
        assert f"warning: for 2h00m: {said}" in here.tj("status", "digits").out
        assert said in here.tj("history", "digits").out
    assert said not in here.tj("status", "digits").out.split("ATTEMPT")[0], "of a killed one it is no news"
    assert "WARNING" not in here.tj("list").out


def test_a_running_job_shows_its_pace_and_when_its_last_step_was(here: Shell) -> None:
    def ago(seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))

    began = {"number": 1, "cause": "Started", "worldSize": 1, "members": "0", "state": "Running", "workers": 1}
    told = {"step": 180, "totalSteps": 450, "position": 9, "secondsPerStep": 0.04, "lastReportTime": ago(45)}
    status = {"attempt": {**began, "startedAt": ago(60)}, "progress": told}
    record = running(here, **status)
    with JobLock(str(record.folder)):
        shown = here.tj("status", "digits").out
        assert "step 180/450 (40%)  40 ms/step" in shown and re.search(
            r"no step for (?:[4-9]\ds|1m\d\ds), since \d\d:\d\d:\d\d", shown
        )
        as_json = json.loads(here.tj("status", "digits", "-o", "json").out)["job"]["status"]["progress"]
        assert (as_json["secondsPerStep"], as_json["lastReportTime"]) == (0.04, told["lastReportTime"])
    assert "no step for" not in here.tj("status", "digits").out, "it was killed"


def test_that_no_hang_was_seen_is_not_all_that_is_said_of_a_job_that_runs(here: Shell) -> None:
    record = running(here)
    with JobLock(str(record.folder)):
        shown = here.tj("hang", "digits").out
    assert shown.startswith("no rank of digits was seen to hang\n") and "`tj stack digits` shows where" in shown


def test_the_ranks_of_a_job_that_may_hang_are_told_with_their_pids(here: Shell) -> None:
    record = running(here)
    with JobLock(str(record.folder)):
        without, as_json = here.tj("hang", "digits").out, json.loads(here.tj("hang", "digits", "-o", "json").out)
        assert "pid" not in without and [each["pid"] for each in as_json["ranks"]] == [None]
        with open(here.folder / contract.STACK_FILE.format(rank=0), "w"):  # which tells a rank's process
            shown, as_json = here.tj("hang", "digits").out, json.loads(here.tj("hang", "digits", "-o", "json").out)
    pid = os.getpid()
    said = f"pids: rank 0 is {pid} (`py-spy dump --pid {pid}`, `gdb -p {pid}`)"
    assert shown.splitlines()[-1] == said and as_json["ranks"][0]["pid"] == pid


@pytest.mark.parametrize(
    ("hung", "number", "silent_s", "said"),
    [
        (1, 2, 90, "digits was not seen to hang in attempt 2 yet, and takes no step.\n"),
        (2, 2, 90, "digits was not seen to hang again yet, and takes no step.\n"),
        (1, 2, 20, "digits does not hang. The last time:\n"),
    ],
)
def test_of_a_job_that_stands_for_a_minute_it_is_not_said_that_it_does_not_hang(
    here: Shell, hung: int, number: int, silent_s: int, said: str
) -> None:
    def ago(seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))

    attempt = {"number": number, "cause": "Hang", "worldSize": 2, "members": "0", "state": "Running", "workers": 2}
    hang = {"attempt": hung, "since": ago(900), "message": "rank 1 is in train.py:88 main", "ranks": [1]}
    record = running(here, attempt={**attempt, "startedAt": ago(silent_s)}, hang=hang)
    with JobLock(str(record.folder)):
        shown, status = here.tj("hang", "digits").out, here.tj("status", "digits").out
    stands = silent_s > 60
    assert shown.startswith(said) and f"rank 1 is in train.py:88 main (attempt {hung}, since" in shown
    assert ("`tj stack digits` shows where its ranks are" in shown) == stands
    assert ("next: `tj stack digits` shows where its ranks are, `tj attach" in status) == stands


def test_what_could_not_be_started_names_the_very_command(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (here.folder / "train.py").write_text("print(1)")
    typed = ["run", "trian.py", "--name", "a job", "--storage", "store"]
    refused = here.tj(*typed)
    assert refused.code == contract.CLI_ERROR and "did you mean train.py?" in refused.err
    assert "next: `tj run train.py --name 'a job' --storage store`\n" in refused.err
    (here.folder / "pkg").mkdir()
    (here.folder / "pkg" / "__init__.py").write_text("")
    (here.folder / "pkg" / "deep.py").write_text("print(1)")
    assert "next: `tj run pkg/deep.py --name x`\n" in here.tj("run", "pkg/dep.py", "--name", "x").err
    assert "next: `tj run -m pkg.deep`\n" in here.tj("run", "-m", "pgk.deep").err
    assert "next: name another script" in here.tj("run", "nowhere.py").err
    (here.folder / "plain").write_text("no folder")
    refused = here.tj("run", "train.py", "--storage", "plain")
    assert "next: correct that, then `tj run train.py --storage plain`\n" in refused.err
    record = running(here)
    with JobLock(str(record.folder)):
        refused = here.tj("run", "train.py", "--name", "digits", "--storage", "store")
    assert "is running already" in refused.err and "`tj stop digits` stops it; then `tj run train.py" in refused.err

    def bare(*_: object, **__: object) -> None:
        raise LaunchError("the storage cannot be used: there are no credentials. Set them")

    monkeypatch.setattr("trainjob.launch.local.checks.check", bare)
    refused = here.tj("run", "train.py", "--storage", "s3://bucket/a", "--dry-run")
    assert "next: `export AWS_ACCESS_KEY_ID=" in refused.err
    assert "then `tj run train.py --storage s3://bucket/a --dry-run`" in refused.err


def test_a_long_command_is_not_said_again() -> None:
    assert (
        with_command(f"correct that, then {AGAIN}", ["run", "x" * 500]) == "correct that, then the same command again"
    )
    assert with_command("look", ["run", "train.py"]) == "look"


def test_a_job_between_two_attempts_is_in_one_state(here: Shell) -> None:
    record = running(here, phase="Restarting")
    with JobLock(str(record.folder)):
        shown = here.tj("status", "digits").out
        assert shown.splitlines()[0].split()[-1] == "Restarting" and shown.splitlines()[1].split()[0] == "Restarting"
        assert "next: `tj attach digits` shows it" in shown
        assert here.tj("list", "--status", "restarting", "-o", "name").out == "digits\n"
    assert here.tj("list").out.splitlines()[1].split()[1] == "Killed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"state": "Ended", "endCause": "KilledBySignal"},
            "attempt 2 has ended [KilledBySignal], the next one has not",
        ),
        ({}, "digits restarts: attempt 2 starts its ranks [NonZeroExit]"),
        ({"runningAt": "2026-01-02T03:04:05Z"}, "the ranks of digits have just ended"),
    ],
)
def test_where_ranks_are_that_are_just_started_again(here: Shell, fields: dict[str, Any], said: str) -> None:
    """In those seconds nobody stands anywhere, and that is not for want of the training library."""
    record = running(here)
    began = {"number": 2, "state": "Running", "cause": "NonZeroExit", "members": "0", "workers": 1, "worldSize": 1}
    attempt = {**began, "startedAt": "2026-01-02T03:04:05Z", **fields}
    status = {**record.job.get("status", {}), "attempt": attempt}
    records.write(replace(record, job={**record.job, "status": status}))
    with JobLock(str(record.folder)):
        shown = here.tj("stack", "digits")
    assert shown.code == contract.CLI_NOT_FOUND and said in shown.err and "training library" not in shown.err
    assert "`tj stack digits` in a moment" in shown.err.splitlines()[-1]


@pytest.mark.parametrize("told", ["asked", "suspended"])
def test_a_job_that_is_stopping_is_in_one_state(here: Shell, told: str) -> None:
    record = running(here, **({"phase": "Suspended"} if told == "suspended" else {}))
    if told == "asked":
        records.ask_to_stop(record)
    else:
        records.write(replace(record, job={**record.job, "spec": {**record.job["spec"], "suspend": True}}))
    with JobLock(str(record.folder)):
        shown = here.tj("status", "digits").out
        assert shown.splitlines()[0].split()[-1] == "Stopping" and shown.splitlines()[1].split()[0] == "Stopping"
        assert "Running" not in shown and "Suspended" not in shown
        assert here.tj("list", "--status", "stopping", "-o", "name").out == "digits\n"
        assert here.tj("list", "--status", "running", "-o", "name").out == ""
