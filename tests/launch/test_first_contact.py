"""Words that people meet in their first hour: a slip is named, and the way out with it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

import trainjob
from trainjob import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchConfig, TorchTrainer
from trainjob.cli.ending import retry
from trainjob.cli.main import main
from trainjob.cli.parser import build
from trainjob.launch import ConfigError, LaunchError
from trainjob.launch import job as jobs
from trainjob.launch.handover import payload
from trainjob.screen.failure import Retry, advice, next_steps
from trainjob.session import calls, context
from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure

RETRY = Retry(command="tj run train.py", script="train.py", storage="/store")


def failure(reason: str, **given: Any) -> Failure:
    return Failure.model_validate({"attempt": 1, "time": "2026-01-02T03:04:05Z", "reason": reason, **given})


# --- From Python ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        (ScalingConfig, {"num_worker": 2}, "ScalingConfig has no argument 'num_worker'; did you mean 'num_workers'?"),
        (RunConfig, {"nmae": "x"}, "RunConfig has no argument 'nmae'; did you mean 'name'?"),
        (FailureConfig, {"max_failure": 1}, "did you mean 'max_failures'?"),
        (CheckpointConfig, {"keep": 1}, "CheckpointConfig has no argument 'keep'; its arguments: num_to_keep, "),
        (TorchConfig, {"backnd": "gloo"}, "did you mean 'backend'?"),
    ],
)
def test_a_misspelt_argument_is_told(made: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        made(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in trainjob.__all__
        if inspect.isfunction(thing := getattr(trainjob, name)) and inspect.signature(thing).parameters
    ],
)
def test_every_function_tells_of_an_argument_that_it_does_not_have(name: str) -> None:
    thing = getattr(trainjob, name)
    known = list(inspect.signature(thing).parameters)
    with pytest.raises(TypeError, match=rf"{name}\(\) has no argument 'nosuchthing'[:;]"):
        thing(**dict.fromkeys(known), nosuchthing=1)


def test_settings_that_were_given_by_their_place_are_told_by_their_name() -> None:
    for made in (lambda: TorchTrainer(print, ScalingConfig()), lambda: RunConfig("digits")):
        with pytest.raises(TypeError, match="by name") as caught:
            made()
        assert "scaling_config=..." in str(caught.value) or "name, storage_path" in str(caught.value)


def test_a_callback_with_a_misspelt_hook_is_told() -> None:
    with pytest.warns(UserWarning, match=r"Typo\.after_raport is never called; did you mean after_report\?"):
        type("Typo", (trainjob.UserCallback,), {"after_raport": lambda self: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Fine", (trainjob.UserCallback,), {"after_report": lambda self: None, "after_all": lambda self: None})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TorchTrainer(print, backend="kubernetes"), "backend='kubernetes': give trainjob.Kubernetes(image=\""),
        (lambda: trainjob.Result.from_path("s3://"), "s3:// names no bucket: give s3://bucket/folder"),
        (lambda: TorchTrainer.restore("s3://"), "s3:// names no bucket: give s3://bucket/folder"),
    ],
)
def test_a_value_that_cannot_be_says_what_could(call: Any, said: str) -> None:
    with pytest.raises(Exception) as caught:
        call()
    assert said in str(caught.value)


def test_without_a_kubeconfig_python_hears_what_a_shell_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match=r"no kubeconfig: ~/\.kube/config does not exist, and KUBECONFIG is not set"):
        trainjob.ClusterRun.attach("digits")


def test_below_a_traceback_stands_what_to_do_about_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError) as raised:
        trainjob.ClusterRun.attach("digits")
    last = "".join(traceback.format_exception(raised.value)).splitlines()[-1]
    assert last.startswith("next: name one with --kubeconfig or KUBECONFIG")


def test_metrics_as_keywords_are_told_how_they_travel() -> None:
    for call in (trainjob.report, trainjob.log):
        with pytest.raises(TypeError, match=r"has no argument 'loss': metrics travel in one dict, .*\(\{'loss': "):
            call(loss=1)
    with pytest.raises(TypeError, match=r"report\(\) has no argument 'stp'; did you mean 'step'\?"):
        trainjob.report({"loss": 1}, stp=2)


def test_an_upload_mode_that_does_not_exist_is_refused_without_a_checkpoint_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "link", lambda: pytest.fail("nothing is sent"))
    with pytest.raises(ValueError, match="checkpoint_upload_mode='SYNCH': one of ASYNC, SYNC, NO_UPLOAD"):
        trainjob.report({"loss": 1}, checkpoint_upload_mode="SYNCH")


def test_what_a_function_captured_is_named_and_not_shown_as_the_argument() -> None:
    lock = threading.Lock()

    def loop() -> None:
        with lock:
            pass

    with pytest.raises(ConfigError) as caught:
        payload.dumps(payload.Payload(train_loop=loop, config=None, stop=None))
    assert str(caught.value).startswith("train_loop_per_worker=<function ")
    assert "it uses the variable 'lock' of type _thread.lock" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        payload.dumps(payload.Payload(train_loop=print, config={"guard": lock}, stop=None))
    assert str(caught.value).startswith("train_loop_config['guard']=<unlocked _thread.lock")


def test_a_value_that_no_pickle_takes_is_named_by_its_key(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file, pytest.raises(trainjob.CheckpointError, match=r"\['state'\]\['log'\]"):
        trainjob.Checkpoint.from_dict({"step": 1, "state": {"weights": [1], "log": file}})


def test_a_folder_that_was_never_made_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(trainjob.CheckpointError, match=r"Save into it first \(os\.makedirs"):
        trainjob.Checkpoint.from_directory(str(tmp_path / "none")).to_directory(str(tmp_path / "copy"))


def test_the_package_shows_what_is_its_own() -> None:
    shown = dir(trainjob)
    assert not {"Any", "Dict", "List", "TYPE_CHECKING", "import_module", "annotations"} & set(shown)
    assert {"report", "init", "TorchTrainer", "torch", "__version__"} <= set(shown)


def test_a_launcher_in_python_is_told_how_the_training_becomes_the_rank() -> None:
    environ = {contract.ENV_AGENT_SOCKET: "/s", contract.ENV_RANK_PID: "1", contract.ENV_RANK: "0"}
    with pytest.raises(trainjob.NotInWorkerError) as caught:
        context.read(environ)
    for way_out in ("tj run train.py", "os.execv(sys.executable", "runpy.run_path"):
        assert way_out in str(caught.value)


def test_names_that_only_differ_in_an_underscore_are_two_jobs() -> None:
    assert jobs.job_name("my_run") != jobs.job_name("my-run") == "my-run"


# --- From a shell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (failure(contract.REASON_SIGNAL, signal=11), "crashed in native code: does a library not fit"),
        (failure(contract.REASON_SIGNAL, signal=9), "who sent the signal"),
        (failure(contract.REASON_EXIT, exitCode=2, rank=0), "arguments: they go after --"),
        (failure(contract.REASON_EXIT, exitCode=7, rank=0), "Find what ends rank 0 with that exit code"),
        (
            failure(contract.REASON_USER_ERROR, message="rank 0 raised BdbQuit", traceback='File "/w/a.py", line 3'),
            "tj run --in-process",
        ),
        (
            failure(contract.REASON_USER_ERROR, message="rank 0 raised ModuleNotFoundError: No module named 'einops'"),
            f"{sys.executable} -m pip install einops",
        ),
        (
            failure(
                contract.REASON_USER_ERROR, message="rank 0 raised RuntimeError: x", traceback="bootstrapping phase"
            ),
            "if __name__ == '__main__':",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                rank=1,
                message="rank 1 raised RuntimeError: DataLoader worker (pid(s) 28785) exited unexpectedly",
                traceback='File "/w/a.py", line 3',
            ),
            "its own error stands above in the output of rank 1. With the start method spawn",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                message="rank 1 raised AttributeError: Can't pickle local object 'main.<locals>.D'",
                traceback='File "/w/a.py", line 7\n  File "/lib/python3.11/multiprocessing/popen_spawn_posix.py", line 47',
            ),
            "define them at the top of a module, not in a function, or use the start method fork (/w/a.py:7). For fit() "
            "it is a module that the script imports",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                message="rank 0 raised RuntimeError: Error(s) in loading state_dict for Net:",
                traceback='File "/w/a.py", line 3\n\tUnexpected key(s) in state_dict: "module.0.weight", "module.0.bias". ',
            ),
            "strip or add the prefix `module.`",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                message="rank 0 raised RuntimeError: Error(s) in loading state_dict for Net:",
                traceback='File "/w/a.py", line 3\n\tsize mismatch for 0.weight: copying a param with shape',
            ),
            "Fix /w/a.py:3: the weights that it loads are of another model than the one there",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                message="rank 1 raised IndexError: list index out of range",
                traceback='  File "/w/a.py", line 3\n    lr = float(sys.argv[1])\n               ~~~~~~~~^^^\n'
                "IndexError: list index out of range",
            ),
            "Give the script the arguments that it reads at /w/a.py:3: they go after --",
        ),
        (
            failure(
                contract.REASON_USER_ERROR,
                message="rank 1 raised EOFError: EOF when reading a line",
                traceback='File "/w/a.py", line 3',
            ),
            "Take input() out at /w/a.py:3: ranks have no terminal. Give it an argument, after --; `tj run --in-process`",
        ),
    ],
)
def test_advice_fits_what_happened(given: Failure, said: str) -> None:
    assert said in advice(given.reason, given, RETRY)


def test_a_question_ends_as_one() -> None:
    said = next_steps(contract.REASON_SIGNAL, failure(contract.REASON_SIGNAL, signal=11), RETRY, resumes=False)
    assert said[0].endswith("driver?")


def test_a_module_is_tried_as_a_module() -> None:
    args = build().parse_args(["run", "-m", "pkg.train"])
    args.script_args = []
    job = jobs.from_script(jobs.ScriptJob(command=("python", "-m", "pkg.train")))
    assert advice(contract.REASON_START, None, retry(args, job)).startswith("Try `python -m pkg.train` by itself")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian.py"], "the script {here}/trian.py does not exist; did you mean train.py?"),
        (["-m", "nosuchmod"], "there is no module nosuchmod"),
        (["-m", "pakage.train"], "there is no module pakage; did you mean package?"),
        (
            ["-m", "train.py"],
            "train.py is a file, and -m takes the name of a module: give it without -m, or `-m train`",
        ),
        (["-m", "./package/train.py"], "give it without -m, or `-m package.train`"),
        (
            ["-m", "{here}/train.py"],
            "{here}/train.py is a file, and -m takes the name of a module: give it without -m\n",
        ),
        (["train.py", "--storage", "s3://"], '(it is "s3://")'),
        (["train.py", "--pdb"], "tj run --in-process --pdb train.py"),
        (["--image", "repo/x", "train.py"], "--image is for jobs of a cluster: `tj run` starts processes of this"),
        (["train.py", "--image=repo/x"], "next: on a cluster: tj submit SCRIPT --image IMAGE; here: leave --image out"),
    ],
)
def test_a_slip_in_a_command_is_told_before_anything_starts(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    for name in ("__init__.py", "train.py"):
        (tmp_path / "package" / name).write_text("")
    words = [word.format(here=tmp_path) for word in words]
    assert main(["run", *words]) in (contract.CLI_ERROR, contract.CLI_USAGE)
    assert said.format(here=tmp_path) in capsys.readouterr().err


def test_a_name_that_is_made_of_another_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["run", str(script), "--name", "My Name", "--dry-run", "--storage", str(tmp_path / "s")]) == 0
    assert "(made of 'My Name')" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 60])
def test_help_fits_the_terminal(columns: int) -> None:
    """Prose everywhere; usage lines and examples are typed as they stand, and fit 80."""
    code = (
        "from trainjob.cli.parser import build\n"
        "from trainjob.cli.reference import _commands\n"
        "p = build()\n"
        "for name, each in [('', p), *_commands(p)]:\n"
        "    for line in each.format_help().splitlines(): print(f'{name}\\t{line}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split("\t", 1) for line in done.stdout.splitlines()]
    assert len(lines) > 300
    limit = 80 if columns == 80 else 84
    assert [(name, line) for name, line in lines if len(line) > limit] == []
