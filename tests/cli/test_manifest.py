"""Reading manifests, and `tj validate` on them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from trainjob.cli import manifest
from trainjob.cli.errors import CommandError
from trainjob.cli.main import main
from trainjob_api.contract import CLI_ERROR, CLI_OK, CLI_USAGE

GOOD = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  workers: 2
  template: {spec: {containers: [{name: trainer, image: digits, command: [python, train.py]}]}}
"""
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def to(text: str | bytes, name: str = "job.yaml") -> str:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return to


def test_trainjobs_are_found_among_other_objects(write) -> None:
    assert [document["metadata"]["name"] for document in manifest.read(write(f"{OTHER}---\n{GOOD}---\n---\n"))] == [
        "digits"
    ]


def test_a_manifest_is_validated_with_and_without_f(write, capsys: pytest.CaptureFixture[str]) -> None:
    write(GOOD)
    assert (main(["validate", "job.yaml"]), main(["validate", "-f", "job.yaml"])) == (CLI_OK, CLI_OK)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("job.yaml: TrainJob digits is valid")


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (["validate", "-f"], "tj run train.py"),
        (["run", "--local", "-f"], "tj run train.py"),
        (["submit", "--dry-run", "-f"], "tj submit train.py --image IMAGE"),
    ],
)
@pytest.mark.parametrize("text", ["import trainjob", "def main():\n    x = {1: 2}\n\tprint(x)"])
def test_a_script_after_f_is_told_what_it_is(
    write, capsys: pytest.CaptureFixture[str], words: list[str], next_step: str, text: str
) -> None:
    assert main([*words, write(text, "train.py")]) == CLI_USAGE
    assert capsys.readouterr().err.splitlines() == [
        "tj: train.py is a script, and no manifest",
        f"next: a script stands without -f: {next_step}",
    ]


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob", True),
        ("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob", True),
        ("apiVersion: kubeflow.org/v1\nkind: MPIJob", True),
        ("apiVersion: kubeflow.org/v1\nkind: Notebook", False),
        ("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime", False),
    ],
)
def test_migrate_is_named_where_it_takes_the_file(
    write, capsys: pytest.CaptureFixture[str], head: str, taken: bool
) -> None:
    file = write(f"{head}\nmetadata: {{name: a}}\nspec: {{}}\n")
    with pytest.raises(CommandError, match=f"{file} holds no TrainJob") as raised:
        manifest.read(file)
    assert (raised.value.next_step == f"`tj migrate {file}` makes a TrainJob of it") is taken
    main(["migrate", file])
    assert ("holds no job of Kubeflow" in capsys.readouterr().err) is not taken


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert manifest.read_one("-")["kind"] == "TrainJob"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2", "is not YAML: "),
        ("a: b: c", "line 1, column 5"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        ("", "found: nothing"),
        (OTHER, "found: ConfigMap"),
        ("- 1", "found: a list"),
        ("spec: {}", "found: a mapping without kind"),
        ("just words", "found: text"),
    ],
)
def test_a_file_without_a_trainjob_is_one_clear_error(write, text: str | bytes, said: str) -> None:
    with pytest.raises(CommandError, match=said) as raised:
        manifest.read(write(text))
    assert raised.value.next_step


def test_a_missing_file_and_a_folder_are_named(write, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no file gone\.yaml"):
        manifest.read("gone.yaml")
    with pytest.raises(CommandError, match="cannot be read"):
        manifest.read(str(tmp_path))


def test_two_jobs_cannot_be_run_at_once(write) -> None:
    with pytest.raises(CommandError, match="holds 2 TrainJobs"):
        manifest.read_one(write(f"{GOOD}---\n{GOOD}"))


def test_a_valid_manifest_is_summed_up(write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", write(GOOD)]) == CLI_OK
    said = capsys.readouterr().out
    assert (
        said == "job.yaml: TrainJob digits is valid; 2 workers with 1 process each; no storage: checkpoints survive "
        "processes, not pods; up to 3 restarts\n"
    )


@pytest.mark.parametrize(
    ("elastic", "said"),
    [
        ("{minWorkers: 1, maxWorkers: 4}", "1 to 2 workers (elastic) with 1 process each"),
        ("{minWorkers: 1, maxWorkers: 8, allowedSizes: [1, 2, 8]}", "1 to 2 workers (elastic) with 1 process each"),
        ("{minWorkers: 2, maxWorkers: 2}", "2 workers with 1 process each"),
    ],
)
def test_an_elastic_manifest_is_summed_up_with_its_sizes(
    write, capsys: pytest.CaptureFixture[str], elastic: str, said: str
) -> None:
    assert main(["validate", "-f", write(GOOD.replace("workers: 2", f"workers: 2\n  elastic: {elastic}"))]) == CLI_OK
    assert f"; {said}; " in capsys.readouterr().out


def test_everything_that_is_wrong_is_said_at_once(write, capsys: pytest.CaptureFixture[str]) -> None:
    bad = GOOD.replace("workers: 2", "workers: 0\n  wrokers: 3").replace("digits}", "Digits_1}")
    assert main(["validate", "-f", write(f"{bad}---\n{GOOD}")]) == CLI_ERROR
    captured = capsys.readouterr()
    for field in ("spec.workers", "wrokers", "metadata.name"):
        assert field in captured.err
    assert "TrainJob digits is valid" in captured.out
    assert captured.err.splitlines()[-1] == "next: correct the lines above, then `tj validate -f job.yaml`"


def test_a_misspelt_kind_is_an_error_and_not_skipped(write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", write(GOOD.replace("kind: TrainJob", "kind: Trainjob"))]) == CLI_ERROR
    assert "kind" in capsys.readouterr().err
