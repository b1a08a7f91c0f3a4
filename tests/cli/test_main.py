"""The command line's entry: usage, exit codes, and how long `--help` takes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from support.patience import HANG_S
from trainjob.cli import slips
from trainjob.cli.argument_types import job_name, seconds
from trainjob.cli.main import main
from trainjob.cli.parser import build
from trainjob_api.contract import CLI_ERROR, CLI_OK, CLI_USAGE


def test_no_command_shows_the_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == CLI_USAGE
    assert "tj run train.py --workers 2" in capsys.readouterr().out


def test_help_and_version_are_fine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    assert main(["--version"]) == CLI_OK
    assert capsys.readouterr().out.splitlines()[-1].startswith("tj ")


def test_help_of_a_command_stands_on_either_side(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "run"], ["run", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert (ended.value.code, "usage: tj run SCRIPT" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize(
    ("words", "said", "next_step"),
    [
        (["fly"], "there is no command `tj fly`", "`tj --help`"),
        (["versoin"], "there is no command `tj versoin`; did you mean `tj --version`?", "`tj --help`"),
        (["rum", "x.py"], "there is no command `tj rum`; did you mean", "`tj --help`"),
        (["rum"], "`tj run`", "`tj --help`"),
        (["help"], "did you mean `tj --help`?", "`tj --help`"),
        (["version"], "did you mean `tj --version`?", "`tj --help`"),
        (["ls"], "did you mean `tj list`?", "`tj --help`"),
        (["checkpoints", "lst", "x"], "did you mean `tj checkpoints list`?", "`tj checkpoints --help`"),
        (["run", "--wrokers", "2", "x.py"], "no option --wrokers; did you mean --workers?", "`tj run --help`"),
        (
            ["run", "train.py", "--workers", "0"],
            "argument --workers: '0' is no number of workers: give 4, or 2-8 for 2 to 8; at least 1",
            "`tj run --help`",
        ),
        (["run", "train.py", "--workers", "two"], "'two' is no number of workers: give 4, or 2-8", "`tj run --help`"),
        (["run", "train.py", "--max-failures", "-2"], "-2 is too small; the least is -1", "`tj run --help`"),
        (["run", "train.py", "--env", "JUST_A_NAME"], "'JUST_A_NAME' is not NAME=VALUE", "`tj run --help`"),
        (["run", "train.py", "--epochs", "3"], "unknown: --epochs 3", "tj run train.py ... -- --epochs 3"),
        (["run", "--worker", "2", "train.py"], "no option --worker; did you mean --workers?", "go after --"),
        (["validate"], "there is nothing to validate", "tj validate -f FILE"),
        (["validate", "a.yaml", "-f", "b.yaml"], "a.yaml or -f b.yaml: one manifest at a time", "tj validate -f FILE"),
        (["describe", "digits"], "did you mean `tj status`?", "`tj --help`"),
        (["explain", "digits"], "did you mean `tj status`?", "`tj --help`"),
        (["run", "train.py", "--name", ""], "argument --name: it is empty: give a value", "`tj run --help`"),
        (
            ["run", "train.py", "--storage", " "],
            "argument --storage: it is empty: give a value, or leave the option out (is its variable set?)",
            "--help`",
        ),
        (["logs", "x", "--storage", ""], "argument --storage: it is empty", "`tj logs --help`"),
        (
            ["run", "train.py", "--detach", "--in-process"],
            "--detach needs a process of its own",
            "leave --in-process out",
        ),
        (["status"], "required: NAME", "`tj list` shows this machine's jobs"),
        (["checkpoints", "show"], "required: JOB", "`tj list` shows this machine's jobs"),
        (
            ["checkpoints", "rm", "x", "--keep-best"],
            "no option --keep-best; did you mean `tj rm x --keep-best`?",
            "--help`",
        ),
        (
            ["model", "get", "x", "-o", "d", "--best", "loss"],
            "unknown: loss",
            "by another metric: --metric loss --mode min",
        ),
        (
            ["model", "get", "x", "1-1-3", "-o", "d"],
            "unknown: 1-1-3",
            "next: `tj checkpoints download x 1-1-3 -o d` brings that checkpoint",
        ),
        (
            ["list", "--status", "runing"],
            "there is no state runing; did you mean running?",
            "Complete, Failed, Stopped",
        ),
        (["--verion"], "there is no option --verion; did you mean --version?", "`tj --help`"),
        (["list", "--json"], "no option --json; did you mean -o json?", "`tj list --help`"),
        (["run", "train.py", "--json"], "unknown: --json", "go after --"),
        (["run", "train.py", "--nprocs", "2"], "no option --nprocs; did you mean --workers?", "go after --"),
        (
            ["model", "mine"],
            "the following arguments are required: -o/--output-dir",
            "`tj model mine` with `-o DIR` behind it",
        ),
        (
            ["run", "train.py", "--storage", "s3:/bucket"],
            "this version stores on paths and at s3://",
            "s3://bucket/folder",
        ),
        (
            ["run", "train.py", "--storage", "s3:bucket"],
            "this version stores on paths and at s3://",
            "s3://bucket/folder",
        ),
        (["run", "job.yaml"], "job.yaml is a manifest, and no script", "next: tj run -f job.yaml --local"),
        (["submit", "job.yml"], "job.yml is a manifest, and no script", "next: tj submit -f job.yml"),
        (["run", "train.py", "-n", "2"], "no option -n; did you mean --workers?", "go after --"),
        (
            ["run", "train.py", "--nproc_per_node=2"],
            "no option --nproc_per_node; did you mean --workers?",
            "go after --",
        ),
        (["run", "python", "train.py"], "python is no script", "leave python out: tj run train.py"),
        (
            ["run", "python", "train.py", "--workers", "4", "--name", "x"],
            "python is no script",
            "next: leave python out: tj run train.py --workers 4 --name x",
        ),
        (
            ["run", "torchrun", "--nproc_per_node", "2", "train.py"],
            "torchrun is no script",
            "next: leave torchrun out: tj run --workers 2 train.py",
        ),
        (
            [
                "run",
                "torchrun",
                "--standalone",
                "--rdzv_backend",
                "c10d",
                "--nproc-per-node=2",
                "train.py",
                "--lr",
                "2",
            ],
            "torchrun is no script",
            "tj run --workers=2 train.py -- --lr 2",
        ),
        (
            ["run", "python", "-u", "train.py", "--epochs", "3", "--workers", "3", "--env", "A=b c", "--", "more"],
            "python is no script",
            "tj run train.py --workers 3 --env 'A=b c' -- --epochs 3 more",
        ),
        (
            ["submit", "--image", "x", "torchrun", "--nnodes", "2", "--nproc_per_node", "8", "train.py"],
            "torchrun is no script",
            "tj submit --image x --workers 2 --processes-per-worker 8 train.py",
        ),
        (
            ["run", "torchrun", "--nnodes=2", "--nproc_per_node=4", "train.py"],
            "torchrun is no script",
            "tj run --workers=2 --processes-per-worker=4 train.py",
        ),
        (["run", "accelerate", "launch", "--num_processes", "2", "t.py"], "accelerate is", "tj run --workers 2 t.py"),
        (["run", "python3", "-m", "torch.distributed.run", "t.py"], "python3 is no script", "out: tj run t.py"),
        (["run", "python", "-m", "a.b", "--lr", "2"], "python is no script", "out: tj run -m a.b -- --lr 2"),
        (["run", "torchrun", "--nproc_per_node", "gpu", "t.py"], "torchrun is no script", "`tj run --help` shows ours"),
        (
            ["submit", "train.py", "--nproc-per-node", "8"],
            "no option --nproc-per-node; did you mean --processes-per-worker?",
            "go after --",
        ),
        (["submit", "train.py", "--nnodes", "8"], "no option --nnodes; did you mean --workers?", "go after --"),
        (["checkpoints", "get", "x"], "did you mean `tj checkpoints download`?", "`tj checkpoints --help`"),
        (["model", "download", "x"], "did you mean `tj model get`?", "`tj model --help`"),
        (["scale", "digits", "--workers", "3"], "did you mean the number by itself", "`tj scale --help`"),
        (["validate", "-f", "x.yaml", "--", "more"], "takes nothing after --", "`tj validate --help`"),
        (["run"], "nothing to run", "tj run train.py"),
        (["run", "train.py", "-f", "x.yaml"], "not both", "tj run"),
        (["run", "-f", "x.yaml"], "--local", "--local"),
        (["run", "train.py", "--storage", "gs://bucket/x"], "stores on paths", "--storage ./checkpoints"),
        (["run", "-f", "x.yaml", "--local", "--", "--epochs", "3"], "takes nothing after --", "command"),
        (["wait", "digits", "--timeout", "soon"], "'soon' is no time", "`tj wait --help`"),
        (["wait", "digits", "--for", "lunch"], "invalid choice: 'lunch'", "`tj wait --help`"),
        (["logs", "Not_A_Name", "--cluster"], "is no name of a job", "`tj list --cluster`"),
        (["logs", "digits", "-n", "team", "-f", "--previous"], "nothing to follow", "one of -f and --previous"),
        (["logs", "digits", "--previous"], "--previous is for jobs of a cluster", "-n NAMESPACE, --cluster"),
        (["logs", "digits", "-n", "team", "--attempt", "2"], "--attempt is for jobs of this machine", "name a cluster"),
        (["run", "train.py", "--fresh", "--resume-from", "x"], "not allowed with argument --fresh", "`tj run --help`"),
        (["scale", "digits", "0"], "0 is too small", "`tj scale --help`"),
        (["list", "--", "more"], "takes nothing after --", "`tj list --help`"),
        (
            ["submit", "train.py", "--image", "x", "--epochs", "3"],
            "unknown: --epochs 3",
            "tj submit train.py ... -- --epochs 3",
        ),
        (["run", "train.py", "--local", "--fresh"], None, None),
    ],
)
def test_wrong_usage_says_what_to_type(
    words: list[str], said: str | None, next_step: str | None, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(words)
    error = capsys.readouterr().err
    if said is None:
        assert "train.py does not exist" in error  # --local is the default for a script and no error
        return
    assert code == CLI_USAGE
    assert said in error
    assert next_step in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("next: ")


def test_an_unexpected_error_is_a_sentence_and_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr("trainjob.cli.manifest.read", lambda file: [][0])
    monkeypatch.delenv("TRAINJOB_DEBUG", raising=False)
    assert main(["validate", "-f", "x"]) == CLI_ERROR
    error = capsys.readouterr().err
    assert "unexpected IndexError" in error
    assert "TRAINJOB_DEBUG=1" in error
    monkeypatch.setenv("TRAINJOB_DEBUG", "1")
    with pytest.raises(IndexError):
        main(["validate", "-f", "x"])


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, trainjob.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: "
        "pass\nprint(sorted(sys.modules), file=sys.stderr)"
    )
    least = float("inf")
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        least = min(least, used)
    for heavy in (
        "torch",
        "pydantic",
        "yaml",
        "rich",
        "aiohttp",
        "asyncio",
        "kubernetes",
        "urllib3",
        "trainjob_operator",
        "trainjob.launch",
    ):
        assert f"'{heavy}'" not in done.stderr
    assert least < 0.3, "seconds of CPU"


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainjob.cli", "run", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
        )
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1h5s", 3605.0)]
)
def test_times(text: str, found: float) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["trainjob.trainjob.dev/digits", "tj/digits", "digits"])
def test_a_job_s_name_as_kubectl_prints_it(text: str) -> None:
    assert job_name(text) == "digits"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("checkpoints mine", "checkpoints list mine"),
        ("checkpoints mine -o json --all", "checkpoints list mine -o json --all"),
        ("checkpoints mine show 1-1-2", "checkpoints show mine 1-1-2"),
        ("model mine -o m", "model get mine -o m"),
        ("checkpoints show mine", None),
        ("checkpoints lits mine", None),
        ("checkpoints remove mine 1-1-2", None),
        ("checkpoints --help", None),
        ("checkpoints", None),
        ("list mine", None),
    ],
)
def test_a_jobs_name_in_the_place_of_an_action_means_the_one_that_changes_nothing(
    typed: str, meant: str | None
) -> None:
    assert slips.completed(typed.split()) == (meant or typed).split()


def test_the_actions_are_those_of_the_grammar() -> None:
    commands = next(each for each in build()._actions if isinstance(each, argparse._SubParsersAction)).choices
    for name, actions in slips.ACTIONS.items():
        (known,) = (each for each in commands[name]._actions if isinstance(each, argparse._SubParsersAction))
        assert tuple(known.choices) == actions
