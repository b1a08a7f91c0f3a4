"""`tj checkpoints` and `tj model get` on what lies on storage, on a path and in a bucket, without the job alive."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support import s3, terminals
from support.checkpoint import Job, read_tree, write_tree
from support.checkpoint_cli import Shell, shell
from support.patience import HANG_S
from trainjob import Checkpoint
from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing import retire
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli.checkpoints.choice import look
from trainjob.cli.checkpoints.contents import _verified, get_files
from trainjob.cli.checkpoints.places import Place
from trainjob.cli.checkpoints.transfer_progress import Lines
from trainjob.cli.errors import CommandError
from trainjob.launch.errors import ConfigError
from trainjob.launch.local.lock import JobLock
from trainjob.launch.outcome.result import Result
from trainjob_api import contract


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where commands run; no cluster is there."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def home(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a home and locks of its own; not for tests with a bucket, whose server is built in the real home's cache."""
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(here))
    return here


@pytest.fixture
def local(home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(home, str(home / "store"), capsys)


@pytest.fixture(params=["path", "s3"])
def any_shell(
    request: pytest.FixtureRequest, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    if request.param == "path":
        return shell(here, str(here / "store"), capsys)
    s3.use(monkeypatch, s3.endpoint())
    return shell(here, s3.fresh_uri().rsplit("/", 1)[0], capsys)


def damage(shell: Shell, id_: str) -> None:
    """Other bytes under the same name, in the same size."""
    shell.job.store.put(
        layout.file_key(CheckpointId.parse(id_), "model.pt"), b"!" * len(shell.job.contents(id_)["model.pt"])
    )


def ids(shell: Shell, *words: str) -> list[str]:
    return shell.checkpoints("list", "-o", "name", *words).out.split()


# --- list and show ----------------------------------------------------------------------------------------------------


def test_list_is_a_line_per_committed_checkpoint(any_shell: Shell) -> None:
    assert any_shell.checkpoints("list").out == f"there are no checkpoints in {any_shell.uri}\n"
    any_shell.save("1-1-1", "1-1-2")
    any_shell.save("1-1-3", metrics={f"m{n}": n for n in range(9)}, step=None)
    any_shell.job.share("1-1-4", 0)
    inventory.write_policy(any_shell.job.store, 1, Policy(None, "val.acc", "max"))
    said = any_shell.checkpoints("list")
    header, *lines = said.out.splitlines()
    assert header.split() == ["ID", "STEP", "EPOCH", "METRICS", "SIZE", "FILES", "AGE", "MARKS"]
    assert [line.split()[0] for line in lines] == ["1-1-1", "1-1-2", "1-1-3"]
    assert "val.acc=0.2 loss=0.5" in lines[1], "what is scored comes first"
    assert lines[1].endswith("best")
    assert "m0=0 m1=1 m2=2 ..." in lines[2]
    assert lines[2].endswith("latest")
    assert said.err == "tj  | 1 not committed: --all\n"
    assert any_shell.checkpoints("list", "--all").out.splitlines()[-1].split() == ["1-1-4", "unfinished"]
    assert "m8=8" in any_shell.checkpoints("list", "-o", "wide").out
    assert ids(any_shell) == ["1-1-1", "1-1-2", "1-1-3"]


def test_list_is_of_the_newest_run_and_of_those_that_it_goes_on_from(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2")
    any_shell.run("uid-2")
    said = any_shell.tj("checkpoints", "list", any_shell.uri)
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == ["1-1-1", "1-1-2"]
    assert said.err == "tj  | run 2 started from 1-1-2\n"
    any_shell.save("2-1-3", "1-1-3")
    said = any_shell.tj("checkpoints", "list", any_shell.uri)
    assert ids(any_shell) == ["1-1-1", "1-1-2", "2-1-3"], "and not what a leftover of run 1 stored later"
    assert said.err.splitlines()[0] == "tj  | 1 checkpoint of other runs: --all"
    assert ids(any_shell, "--all") == ["1-1-1", "1-1-2", "1-1-3", "2-1-3"]


def test_what_a_run_was_told_to_start_from_is_here_or_in_the_folder_that_is_named(any_shell: Shell) -> None:
    store, first = any_shell.job.store, CheckpointId(1, 1, 2)
    any_shell.save("1-1-1")
    any_shell.save("1-1-2", parent=CheckpointId(1, 1, 1))
    settle(store, "uid-2", f"{any_shell.uri}/checkpoints/1-1-2", [])
    any_shell.save("2-1-1", parent=first)
    any_shell.save("2-1-2", parent=CheckpointId(2, 1, 1))
    assert "based on    2-1-1 <- 1-1-2 <- 1-1-1\n" in any_shell.checkpoints("show").out
    any_shell.checkpoints("rm", "1-1-2", "--yes")
    assert "based on    2-1-1 <- 1-1-2 (no longer here)\n" in any_shell.checkpoints("show").out
    other = Job(any_shell.folder, open_store(f"{any_shell.storage}/default/other"))
    other.save("1-1-1")
    named = f"{other.store.uri()}/checkpoints/1-1-1"
    settle(store, "uid-3", named, [])
    any_shell.save("3-1-1", parent=CheckpointId(1, 1, 1))
    assert f"based on    1-1-1 (from {named})\n" in any_shell.checkpoints("show").out, "not this folder's 1-1-1"
    assert f"based on    1-1-1 (from {named})\n" in any_shell.checkpoints("show", "3-1-1").out


def test_list_says_how_a_validation_stands(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2", "1-1-3")
    for n, status in ((1, validations.VALIDATED), (2, validations.PENDING)):
        validations.write(any_shell.job.store, CheckpointId(1, 1, n), Validation(status, {"acc": 0.25}))
    _, *lines = any_shell.checkpoints("list").out.splitlines()
    assert [re.split(r"  +", line)[-1] for line in lines] == ["validated", "validation open", "latest"]
    assert "acc=0.25" in lines[0]
    assert any_shell.checkpoints("list", "--all").out.splitlines()[1:] == lines, "--all says no less"


def test_list_for_programs(any_shell: Shell) -> None:
    any_shell.save("1-1-1", metrics={"loss": float("nan"), "text": "x"})
    found = json.loads(
        any_shell.checkpoints("list", "-o", "json").out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert (found["storage"], found["run"]) == (any_shell.uri, 1)
    (item,) = found["items"]
    assert item == {
        "id": "1-1-1",
        "uri": f"{any_shell.uri}/checkpoints/1-1-1",
        "state": "good",
        "marks": ["latest"],
        "step": 10,
        "epoch": 1,
        "metrics": {"loss": "nan", "text": "x"},
        "bytes": any_shell.job.note("1-1-1").total_bytes,
        "files": 3,
        "time": "2017-07-14T02:40:00Z",
        "worldSize": 2,
        "parent": None,
    }


def test_show_is_the_manifest_in_words(any_shell: Shell) -> None:
    any_shell.save("1-1-1")
    any_shell.save("1-1-2", parent=CheckpointId(1, 1, 1), total_steps=100, metadata={"by": "me"})
    any_shell.save("1-1-4", parent=CheckpointId(1, 1, 2))
    any_shell.checkpoints("rm", "1-1-1", "--yes")
    shown = any_shell.checkpoints("show", "1-1-2").out
    for words in (
        "checkpoint 1-1-2",
        "step        20 of 100   epoch 1",
        "by 2 ranks",
        "loss=0.5 val.acc=0.2",
        '{"by": "me"}',
        "1-1-1 (no longer here)",
        "deep/er/optim ü.pt",
    ):
        assert words in shown
    assert f"{any_shell.uri}/checkpoints/1-1-2" in shown
    assert "based on    1-1-2 <- 1-1-1 (no longer here)" in any_shell.checkpoints("show", "latest").out
    assert any_shell.tj("checkpoints", "show", f"{any_shell.uri}/checkpoints/1-1-2").out == shown
    found = json.loads(any_shell.checkpoints("show", "-o", "json").out)
    assert found["id"] == "1-1-4"
    text = any_shell.job.store.read(layout.manifest_key(CheckpointId.parse("1-1-4")))
    assert text is not None
    assert found["manifest"] == json.loads(text)


# --- where a job is found ---------------------------------------------------------------------------------------------


def test_a_job_of_this_machine_is_found_by_its_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = shell(home, str(home / "home" / "trainjob_results"), capsys)
    kept.save("1-1-1")
    found = kept.tj("checkpoints", "list", "digits")
    assert "1-1-1" in found.out
    assert found.err == "" and kept.tj("checkpoints", "list", "digits", "--local").out == found.out
    assert "1-1-1" in kept.tj("checkpoints", "list", "./home/trainjob_results/default/digits").out
    assert "1-1-1" in kept.tj("checkpoints", "list", "~/trainjob_results/default/digits/checkpoints").out
    assert kept.tj("checkpoints", "list", "digits", "-n", "team").code == contract.CLI_NO_ACCESS


@pytest.mark.parametrize(
    ("words", "code", "said", "step"),
    [
        (["list", "digit", "--storage", "store"], contract.CLI_NOT_FOUND, "there is no job digit in", "ls "),
        (
            ["list", "nobody"],
            contract.CLI_NOT_FOUND,
            "there is no job nobody on this machine",
            "-n NAMESPACE or --cluster",
        ),
        (["list", "digits", "--cluster"], contract.CLI_NO_ACCESS, "there is no kubeconfig", "--storage s3://BUCKET"),
        (["list", "Not A Name", "--cluster"], contract.CLI_USAGE, "is no name of a job", "path or s3:// URI"),
        (["list", "./nowhere"], contract.CLI_NOT_FOUND, "there is nothing at", "<storage>/<namespace>/<name>"),
        (["list", "./store"], contract.CLI_NOT_FOUND, "it holds default/", "<storage>/<namespace>/<name>"),
        (["list", "gs://bucket/x"], contract.CLI_ERROR, "gs://", "correct that"),
        (["list", "./store/default/digits", "-n", "team"], contract.CLI_USAGE, "says itself where it is", "leave -n"),
        (
            ["show", "digits", "--storage", "store", "1-1-5"],
            contract.CLI_NOT_FOUND,
            "there is no checkpoint 1-1-5",
            "--all",
        ),
        (
            ["show", "digits", "--storage", "store", "1-1-1", "1-1-2"],
            contract.CLI_USAGE,
            "one checkpoint at a time",
            "name one",
        ),
        (
            ["show", "digits", "--storage", "store", "best"],
            contract.CLI_USAGE,
            "has no score attribute",
            "tj model get digits --storage store --metric",
        ),
        (
            ["show", "./store/default/digits/checkpoints/1-1-1", "1-1-2"],
            contract.CLI_USAGE,
            "is checkpoint 1-1-1 already",
            "leave 1-1-2 out",
        ),
        (
            ["download", "digits", "--storage", "store"],
            contract.CLI_USAGE,
            "required: -o",
            "--storage store` with `-o DIR`",
        ),
        (["rm", "digits", "--storage", "store"], contract.CLI_USAGE, "no checkpoint is named", "ID ..."),
        (["list", "digits", "--bogus"], contract.CLI_USAGE, "unknown: --bogus", "--help"),
        ([], contract.CLI_USAGE, "required: ACTION", "--help"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(local: Shell, words: list[str], code: int, said: str, step: str) -> None:
    local.save("1-1-1", "1-1-2")
    refused = local.tj("checkpoints", *words)
    assert refused.code == code, refused.err
    assert said in refused.err
    assert step in refused.err.splitlines()[-1]
    assert refused.err.splitlines()[-1].startswith("next: ")
    assert refused.out == ""


def test_an_identity_that_is_gone_names_its_neighbours(local: Shell) -> None:
    local.save("1-1-1", "1-1-3", "1-1-4", "1-1-8")
    assert "near it: 1-1-3, 1-1-4, 1-1-8\n" in local.checkpoints("show", "1-1-6").err
    assert (
        "near it: 1-1-3" in local.checkpoints("show", "1-1-33").err
        or "1-1-8" in local.checkpoints("show", "1-1-33").err
    )
    assert "near it: 1-1-3, 1-1-4, 1-1-8\n" in local.checkpoints("show", "newest").err


def test_a_folder_that_may_not_be_read_says_so(local: Shell) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    local.save("1-1-1")
    folder = Path(local.uri) / "checkpoints"
    folder.chmod(0)
    try:
        refused = local.checkpoints("list")
    finally:
        folder.chmod(0o755)
    assert (refused.code, "may not read it" in refused.err) == (contract.CLI_ERROR, True)


def test_without_boto3_it_says_what_to_install(here: Path) -> None:
    hide = "import sys; sys.modules['boto3'] = None\nfrom trainjob.cli.main import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", hide, "checkpoints", "list", "s3://bucket/default/digits"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == contract.CLI_ERROR
    assert "needs boto3" in done.stderr
    assert f"next: {sys.executable} -m pip install boto3, then" in done.stderr


def test_a_bucket_that_is_not_there_and_a_wrong_key_are_told(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.use(monkeypatch, s3.endpoint())
    bucket = shell(here, s3.fresh_uri(), capsys)
    missing = bucket.tj("checkpoints", "list", "s3://no-such-bucket/default/digits")
    assert (missing.code, "there is no bucket no-such-bucket" in missing.err) == (contract.CLI_ERROR, True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-key")
    monkeypatch.setenv("AWS_REGION", "us-west-1")  # another client than the one that is there
    wrong = bucket.checkpoints("list")
    assert wrong.code == contract.CLI_ERROR
    assert wrong.err.splitlines()[-1].startswith("next: ")


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_reads_everything_and_marks_only_when_told(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2", "1-1-3")
    assert any_shell.checkpoints("verify").code == contract.CLI_OK
    damage(any_shell, "1-1-2")
    damage(any_shell, "1-1-3")
    said = any_shell.checkpoints("verify")
    assert said.code == contract.CLI_ERROR
    assert "1-1-1 is intact: 3 files" in said.out
    assert f"1-1-2 is damaged:\n  {any_shell.uri}/checkpoints/1-1-2/model.pt is damaged: expected" in said.out
    assert said.err.splitlines()[-1].endswith("1-1-2 1-1-3 --mark` marks it, so that restarts pass it over")
    assert ids(any_shell) == ["1-1-1", "1-1-2", "1-1-3"]
    assert any_shell.checkpoints("verify", "1-1-1").code == contract.CLI_OK
    found = json.loads(any_shell.checkpoints("verify", "-o", "json").out)
    assert [(item["id"], item["good"], len(item["damage"])) for item in found] == [
        ("1-1-1", True, 0),
        ("1-1-2", False, 1),
        ("1-1-3", False, 1),
    ]
    assert any_shell.checkpoints("verify", "1-1-3", "--mark").code == contract.CLI_ERROR
    listed = any_shell.checkpoints("list")
    assert [line.split()[-1] for line in listed.out.splitlines()[2:]] == ["latest", "damaged"]
    assert "tj  | 1-1-3 is damaged: " in listed.err
    assert [str(m.id) for m in catalogue.list_checkpoints(any_shell.job.store)] == ["1-1-1", "1-1-2"]
    assert any_shell.checkpoints("verify", "1-1-3").code == contract.CLI_ERROR


def test_verify_names_each_file_that_is_gone_or_changed(local: Shell) -> None:
    local.save("1-1-1")
    damage(local, "1-1-1")
    Path(local.uri, "checkpoints/1-1-1/deep/er/optim ü.pt").write_bytes(b"short")
    out = local.checkpoints("verify").out
    assert "model.pt is damaged" in out
    assert "optim ü.pt is damaged: expected 109 bytes, found 5 bytes" in out
    nothing = local.tj("checkpoints", "verify", str(write_tree(local.folder / "plain", {"x": b""})))
    assert nothing.code == contract.CLI_NOT_FOUND


# --- download and model get -------------------------------------------------------------------------------------------


def test_download_makes_a_checkpoint_of_its_own(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2")
    said = any_shell.checkpoints("download", "-o", "out")
    assert said.code == contract.CLI_OK, said.err
    assert said.out.startswith(f"checkpoint 1-1-2 is in {any_shell.folder / 'out'}: 3 files")
    assert read_tree(any_shell.folder / "out") == any_shell.job.contents("1-1-2")
    assert Manifest.loads((any_shell.folder / "out" / ".trainjob" / "manifest.json").read_bytes()).id == CheckpointId(
        1, 1, 2
    )
    assert "1-1-2 is intact" in any_shell.tj("checkpoints", "verify", "./out").out
    assert "checkpoint 1-1-2" in any_shell.tj("checkpoints", "show", "./out").out
    assert (any_shell.folder / "out" / "model.pt").read_bytes() == (
        Path(Checkpoint("out").to_directory(str(any_shell.folder / "copied"))) / "model.pt"
    ).read_bytes()
    again = any_shell.checkpoints("download", "-o", "out")
    assert (again.code, "3 of 3 files are here already" in again.err) == (contract.CLI_OK, True)
    other = any_shell.checkpoints("download", "1-1-1", "-o", "out")
    assert (other.code, "is not empty" in other.err, other.err.splitlines()[-1]) == (
        contract.CLI_ERROR,
        True,
        "next: name another folder with -o",
    )
    kept = any_shell.tj("checkpoints", "rm", "./out", "--yes")
    assert (kept.code, "outside of a job's folder" in kept.err) == (contract.CLI_ERROR, True)


def test_download_of_some_files(any_shell: Shell) -> None:
    any_shell.save("1-1-1")
    any_shell.checkpoints("download", "1-1-1", "-o", "some", "--files", "model.*", "--files", "empty")
    assert sorted(read_tree(any_shell.folder / "some")) == ["empty", "model.pt"]
    nothing = any_shell.checkpoints("download", "-o", "none", "--files", "*.bin")
    assert nothing.code == contract.CLI_NOT_FOUND
    assert "no file of 1-1-1 matches *.bin\nnext: it has deep/er/optim ü.pt, empty, model.pt" in nothing.err
    assert not (any_shell.folder / "none").exists()


def test_what_is_damaged_is_not_brought(any_shell: Shell) -> None:
    any_shell.save("1-1-1")
    damage(any_shell, "1-1-1")
    said = any_shell.checkpoints("download", "-o", "out")
    assert (said.code, "model.pt is damaged: expected" in said.err) == (contract.CLI_ERROR, True)
    any_shell.checkpoints("verify", "--mark")
    refused = any_shell.checkpoints("download", "1-1-1", "-o", "out2")
    assert (refused.code, "checkpoint 1-1-1 is damaged" in refused.err) == (contract.CLI_ERROR, True)
    assert any_shell.checkpoints("download", "-o", "out2").code == contract.CLI_NOT_FOUND, "there is no latest any more"


def test_what_retention_removes_meanwhile_is_not_called_damaged(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2")
    place = Place(any_shell.job.store, any_shell.job.store, "digits", "digits")
    found = look(place)
    retire.remove(any_shell.job.store, found.entries[0].id)
    verdict = _verified(found, found.entries[0])
    assert (verdict.gone, verdict.damage) == (True, ())
    with pytest.raises(CommandError, match="1-1-1 was removed while it was read, likely by retention") as raised:
        get_files(found, found.entries[0], "out", whole=True)
    assert raised.value.code == contract.CLI_NOT_FOUND


def get(shell: Shell, *words: str) -> tuple[int, str, str]:
    """(exit code, which one came, what was said)."""
    into = shell.folder / f"model-{len(list(shell.folder.iterdir()))}"
    said = shell.tj("model", "get", "digits", "--storage", shell.storage, "-o", str(into), *words)
    return said.code, said.out.split()[1] if said.out else "", said.err


def test_model_get_takes_the_best_by_the_jobs_score(any_shell: Shell) -> None:
    for n, loss in enumerate((3.0, 1.0, 2.0), 1):
        any_shell.save(f"1-1-{n}", metrics={"loss": loss, "val": {"acc": n}})
    assert get(any_shell)[1] == "1-1-3"
    assert "the latest; no score attribute says which is the best" in get(any_shell)[2]
    assert get(any_shell, "--metric", "loss", "--mode", "min")[1] == "1-1-2"
    assert get(any_shell, "--metric", "val.acc", "--mode", "min")[1] == "1-1-1"
    inventory.write_policy(any_shell.job.store, 1, Policy(None, "loss", "min"))
    code, which, said = get(any_shell)
    assert (code, which) == (contract.CLI_OK, "1-1-2")
    assert "tj  | 1-1-2 (step 20): the best by lowest loss, 1\n" in said
    assert get(any_shell, "--metric", "loss")[1] == "1-1-2"
    assert get(any_shell, "--latest")[1] == "1-1-3"
    any_shell.tj("model", "get", f"{any_shell.uri}/checkpoints/1-1-1", "-o", "one")
    assert read_tree(any_shell.folder / "one") == any_shell.job.contents("1-1-1")
    assert not (any_shell.folder / "one" / ".trainjob").exists()


@pytest.mark.parametrize(
    ("words", "said", "step"),
    [
        (["--best"], "nothing says which checkpoint of digits is the best", "M is one of loss, val.acc; or --latest"),
        (["--metric", "loss"], "is its lowest or its highest value the best?", "--mode min, or max"),
        (["--metric", "f1", "--mode", "max"], "has a number 'f1'", "M is one of loss, val.acc"),
        (["--mode", "max"], "--mode goes with --metric", "--metric M --mode max"),
        (["--latest", "--metric", "loss"], "asks for no metric", "leave one of"),
        (["--latest", "--best"], "not allowed with", "--help"),
    ],
)
def test_model_get_does_not_guess(local: Shell, words: list[str], said: str, step: str) -> None:
    local.save("1-1-1", "1-1-2")
    code, _, err = get(local, *words)
    assert code == contract.CLI_USAGE
    assert said in err
    assert step in err.splitlines()[-1]


def test_model_get_of_another_run(local: Shell) -> None:
    local.save("1-1-1")
    local.run("uid-2")
    local.save("2-1-1")
    local.job.store.create(layout.end_key(2), b"{}")
    local.run("uid-3")
    code, _, err = get(local)
    assert (code, "there are no checkpoints" in err, "--run K" in err) == (contract.CLI_NOT_FOUND, True, True)
    assert get(local, "--run", "1")[1] == "1-1-1"


# --- rm ---------------------------------------------------------------------------------------------------------------


def test_rm_removes_by_retentions_protocol(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2", "1-1-3")
    asked = any_shell.checkpoints("rm", "1-1-1")
    assert (asked.code, "no terminal to ask on" in asked.err) == (contract.CLI_USAGE, True)
    assert ids(any_shell) == ["1-1-1", "1-1-2", "1-1-3"]
    said = any_shell.checkpoints("rm", "1-1-1", "1-1-2", "1-1-1", "--yes")
    assert [line.split(",")[0] for line in said.out.splitlines()] == ["1-1-1 is removed", "1-1-2 is removed"]
    assert ids(any_shell, "--all") == ["1-1-3"]
    assert any_shell.job.store.sizes("checkpoints/1-1-1") == {}


def test_rm_goes_on_with_a_removal_that_was_cut_off(any_shell: Shell) -> None:
    any_shell.save("1-1-1", "1-1-2")
    any_shell.job.store.create(layout.retired_key(CheckpointId.parse("1-1-1")), b"{}\n")
    any_shell.job.store.delete(layout.manifest_key(CheckpointId.parse("1-1-1")))
    assert "removing" in any_shell.checkpoints("list", "--all").out
    assert any_shell.checkpoints("rm", "1-1-1", "-y").code == contract.CLI_OK
    assert ids(any_shell, "--all") == ["1-1-2"]


def test_what_a_job_may_still_need_stays_unless_forced(local: Shell) -> None:
    local.save("1-1-1", "1-1-2")
    local.job.share("1-1-3", 0)
    with JobLock(local.uri):
        latest = local.checkpoints("rm", "1-1-1", "latest", "--yes")
        assert (
            latest.code,
            "1-1-2 is the latest of digits (Running): a restart resumes from it; nothing was removed" in latest.err,
        ) == (
            contract.CLI_ERROR,
            True,
        )
        uploading = local.checkpoints("rm", "1-1-3", "--yes")
        assert "1-1-3 is not committed: digits (Running) may still be uploading it" in uploading.err
        assert ids(local, "--all") == ["1-1-1", "1-1-2", "1-1-3"]
        assert local.checkpoints("rm", "1-1-1", "--yes").code == contract.CLI_OK
    assert local.checkpoints("rm", "1-1-3", "--yes").code == contract.CLI_OK, "nobody uploads any more"
    by_path = local.tj("checkpoints", "rm", local.uri, "1-1-2", "--yes")
    assert "(not completed)" in by_path.err, "by the path alone nobody can tell whether the job is over"
    local.run("uid-2")
    with JobLock(local.uri):
        assert "1-1-2 is in use: digits (Running) started from it" in local.checkpoints("rm", "1-1-2", "--yes").err
        forced = local.checkpoints("rm", "1-1-2", "--yes", "--force")
    assert (forced.code, forced.out.split(",")[0]) == (contract.CLI_OK, "1-1-2 is removed")


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("", False)])
def test_rm_asks_on_a_terminal(local: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, gone: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    local.save("1-1-1", "1-1-2")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = local.checkpoints("rm", "1-1-1")
    assert f"remove 1 checkpoint (359 B) from {local.uri} for good? [y/N]" in said.err
    assert said.code == (contract.CLI_OK if gone else contract.CLI_ERROR)
    assert ids(local) == (["1-1-2"] if gone else ["1-1-1", "1-1-2"])


# --- agreement and progress -------------------------------------------------------------------------------------------


def test_result_and_the_command_line_say_the_same(any_shell: Shell) -> None:
    any_shell.save("1-1-1")
    any_shell.run("uid-2")
    result = Result.from_path(any_shell.uri)
    assert result.checkpoint and [result.checkpoint] == [checkpoint for checkpoint, _ in result.best_checkpoints]
    assert "checkpoint 1-1-1   latest" in any_shell.checkpoints("show").out
    for n, loss in enumerate((2.0, 1.0, 1.0, float("nan")), 1):
        any_shell.save(f"2-1-{n}", metrics={"val": {"loss": loss}})
    damage(any_shell, "2-1-4")
    any_shell.checkpoints("verify", "2-1-4", "--mark")
    any_shell.job.share("2-1-5", 0)
    result = Result.from_path(any_shell.uri)
    listed = json.loads(any_shell.checkpoints("list", "-o", "json").out)["items"]
    good = [item for item in listed if item["state"] == "good"]
    assert (
        [checkpoint.id for checkpoint, _ in result.best_checkpoints]
        == [item["id"] for item in good]
        == ["1-1-1", "2-1-1", "2-1-2", "2-1-3"]
    )
    assert [metrics for _, metrics in result.best_checkpoints] == [item["metrics"] for item in good]
    assert [checkpoint.uri for checkpoint, _ in result.best_checkpoints] == [item["uri"] for item in good]
    assert result.checkpoint is not None
    assert [item["id"] for item in good if "latest" in item["marks"]] == [result.checkpoint.id]
    for mode in ("min", "max"):
        best = result.get_best_checkpoint("val.loss", mode)
        assert best is not None
        assert get(any_shell, "--metric", "val.loss", "--mode", mode)[1] == best.id
    with pytest.raises(ConfigError, match=r"no checkpoint was reported with such a number; there are: .*'val.loss'\]"):
        result.get_best_checkpoint("val.f1", "max")


def test_progress_in_a_pipe_is_a_line_now_and_then() -> None:
    out, now = io.StringIO(), iter([0.0, 1.0, 10.0, 11.0, 20.0])
    with Lines("1-1-1", 4 << 20, out, clock=lambda: next(now)) as lines:
        for _ in range(3):
            lines.moved(1 << 20)
    assert out.getvalue().splitlines() == [
        "tj  | 1-1-1: 2.0 MiB of 4.0 MiB, 204.8 KiB/s, 10s left",
        "tj  | 1-1-1: 3.0 MiB in 20s, 153.6 KiB/s",
    ]


def test_ctrl_c_ends_all_threads_of_a_transfer() -> None:
    """The others learn of it at their next block, however much they have to go."""
    begun, ended = threading.Event(), threading.Event()

    def work(lines: Lines) -> None:
        try:
            while True:
                lines.moved(1)
                begun.set()
        except KeyboardInterrupt:
            ended.set()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Lines("1-1-1", 4 << 20, io.StringIO()) as lines:
        threading.Thread(target=work, args=(lines,), daemon=True).start()
        assert begun.wait(HANG_S)
        signal.raise_signal(signal.SIGINT)
    assert ended.wait(HANG_S)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    """With bytes and rate, gone on to its end; nothing of it on standard output."""
    made = one_checkpoint(tmp_path)
    ours, theirs = pty.openpty()
    try:
        words = [sys.executable, "-m", "trainjob.cli", "checkpoints", "verify", str(made)]
        process = subprocess.Popen(
            words, env=terminals.environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
        )
    finally:
        os.close(theirs)
    screen = b""
    try:
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other side is closed: it has ended
                break
            screen += block
        out, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        os.close(ours)
    assert (process.returncode, out.decode().split(":")[0]) == (contract.CLI_OK, "1-1-1 is intact")
    assert re.search(r"1-1-1 \S+ .*359/359 bytes", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()))


def one_checkpoint(folder: Path) -> Path:
    """A job's folder with one checkpoint."""
    job = Job(folder)
    job.save("1-1-1")
    return job.folder


def test_a_bucket_of_a_cluster_is_opened_with_the_jobs_settings_unless_this_machine_has_its_own() -> None:
    from support.jobs import job
    from trainjob.launch.cluster.bucket import environ

    made = job(
        checkpoint={"storage": "s3://bucket/x", "s3": {"endpointURL": "https://minio.storage:9000/", "region": "eu-1"}}
    )
    found = environ(made, {"HOME": "/h"})
    assert found == {"HOME": "/h", "AWS_ENDPOINT_URL_S3": "https://minio.storage:9000", "AWS_REGION": "eu-1"}
    own = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_DEFAULT_REGION": "eu-2"}
    assert environ(made, own) == own
    assert open_store("s3://bucket/x", None, found).uri("a") == "s3://bucket/x/a"
