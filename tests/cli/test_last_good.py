"""A job whose loss became NaN: the last checkpoint from before is named, and weights that are no numbers are."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_cli import Shell, shell
from support.jobs import attempt, job
from trainjob.cli import resume
from trainjob.cli.checkpoints import weights
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome import last_good
from trainjob.session.checkpoint import Checkpoint
from trainjob_api import contract

COMMAND = "tj run train.py --workers 2 --name digits --storage s -- --lr 1"


@pytest.fixture
def saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = shell(tmp_path, str(tmp_path / "store"), capsys)
    made.save("1-1-1", "1-1-2")
    made.save("1-1-3", metrics={"loss": float("nan")})
    return made


def ended(step: int | None, position: int = 9) -> Any:
    seen = {"metric": "loss", "value": "NaN", "step": step, "position": position, "count": 4}
    began = {**attempt(), "run": 1}
    return job({"attempt": began, "progress": {"position": 12, "nonFinite": seen, "metrics": {}}})


@pytest.mark.parametrize(("step", "good"), [(30, "1-1-2"), (25, "1-1-2"), (20, "1-1-1"), (None, "1-1-2")])
def test_the_last_checkpoint_before_the_first_nan_is_named_with_the_command(
    saved: Shell, step: int | None, good: str
) -> None:
    (line,) = last_good.lines(ended(step), saved.uri, COMMAND)
    assert line.startswith(
        f"  checkpoint {good} at step {good[-1]}0 is the last before loss became NaN: mend the cause"
    )
    assert f"`tj run train.py --workers 2 --name digits --storage s --resume-from digits/{good} -- --lr 1`" in line


def test_where_there_is_none_or_nothing_happened_that_is_said_or_nothing(saved: Shell) -> None:
    assert "no checkpoint from before loss became NaN is kept" in last_good.lines(ended(5), saved.uri, COMMAND)[0]
    assert last_good.lines(job({"attempt": {**attempt(), "run": 1}}), saved.uri, COMMAND) == []
    empty = f"{saved.uri}-of-another-job"
    assert last_good.lines(ended(5), empty, COMMAND) == [
        "  no checkpoint from before loss became NaN: the run has none"
    ]
    (line,) = last_good.lines(ended(30), saved.uri, "python train.py")
    assert line == "  checkpoint 1-1-2 at step 20 is the last before loss became NaN"


def test_the_command_resumes_from_there_alone() -> None:
    for given in ("--resume-from other", "--resume-from=other", "--fresh"):
        typed = last_good.resuming(f"tj run x.py {given} -- --fresh", "digits/1-1-2")
        assert shlex.split(str(typed)) == ["tj", "run", "x.py", "--resume-from", "digits/1-1-2", "--", "--fresh"]


def write(folder: Path, state: dict[str, Any], how: str) -> None:
    import torch

    folder.mkdir(exist_ok=True)
    if how == "from_dict":
        made = Checkpoint.from_dict({"model": state, "where": Path("x")})
        (folder / "checkpoint.pkl").write_bytes((Path(made.path) / "checkpoint.pkl").read_bytes())
    elif how == "torch":
        torch.save({"model": state}, folder / "last.pt")
    else:
        header = b'{"model.a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        data = state["a"].float().numpy().tobytes()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize("how", ["from_dict", "torch", "safetensors"])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, how: str) -> None:
    torch = pytest.importorskip("torch")
    write(tmp_path / "good", {"a": torch.ones(2)}, how)
    write(tmp_path / "bad", {"a": torch.tensor([1.0, float("inf")])}, how)
    assert weights.broken(str(tmp_path / "good")) == []
    assert weights.broken(str(tmp_path / "bad")) == ["model.a"]


def test_what_cannot_be_read_is_unknown_and_nothing_of_it_is_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "last.pt").write_bytes(b"no archive")
    (tmp_path / "checkpoint.pkl").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "run").encode() + b"'\ntR.")
    assert weights.broken(str(tmp_path)) is None
    assert not (tmp_path / "run").exists()


def test_a_model_with_nan_is_brought_with_a_warning_and_the_good_one_is_named(
    saved: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")

    def contents(id_: str) -> dict[str, bytes]:
        body = io.BytesIO()
        torch.save({"a": torch.tensor([1.0 if id_ == "1-1-4" else float("nan")]), "b": torch.ones(2)}, body)
        return {"model.pt": body.getvalue()}

    monkeypatch.setattr(saved.job, "contents", contents)
    saved.save("1-1-4", "1-1-5", "1-1-6")
    get = ("model", "get", "digits", "--storage", saved.storage, "--latest", "-o")
    done = saved.tj(*get, str(saved.folder / "m"))
    assert done.code == contract.CLI_OK and (saved.folder / "m/model.pt").exists(), "it is given all the same"
    assert "warning: a of checkpoint 1-1-6 hold NaN or infinity" in done.err
    said = "checkpoint 1-1-4 is the newest before it whose weights are numbers: `tj model get "
    assert f"{said}{saved.uri}/checkpoints/1-1-4 -o DIR`" in done.err
    monkeypatch.setenv("HOME", str(saved.folder / "home"))
    records.write(Record(name="digits", namespace="default", folder=saved.uri))
    for number, named in enumerate(("digits", "digits/1-1-6")):
        done = saved.tj("model", "get", named, "-o", str(saved.folder / f"by-name-{number}"))
        assert f"{said}digits/1-1-4 -o DIR` brings it, `tj run ... --resume-from digits/1-1-4` trains on" in done.err
    by_name = saved.tj("model", "get", "digits/1-1-4", "-o", str(saved.folder / "n"))
    assert by_name.code == contract.CLI_OK and "NaN" not in by_name.err
    assert resume.resolve("digits/1-1-4", None, None) == f"{saved.uri}/checkpoints/1-1-4"
    good = saved.tj("model", "get", f"{saved.uri}/checkpoints/1-1-4", "-o", str(saved.folder / "g"))
    assert good.code == contract.CLI_OK and "NaN" not in good.err
