"""A job of `tj run`, and what its ranks, Result and the command line say of its checkpoints: the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.cluster_cli import Said
from trainjob.cli.main import main
from trainjob.launch.outcome.result import Result
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, tempfile, trainjob
rank = trainjob.get_context().get_world_rank()
first = trainjob.get_checkpoint().step if trainjob.get_checkpoint() else 0
for step in range(first + 1, 6):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "model.txt"), "w") as file:
        file.write(str(step))
    saved = trainjob.Checkpoint.from_directory(folder) if rank == 0 else None
    trainjob.report({"val": {"loss": abs(step - 3.5)}}, checkpoint=saved, step=step)
    if step == 3 and first == 0 and rank == 1:
        os.kill(os.getpid(), 9)
if rank == 0:
    found = trainjob.get_all_reported_checkpoints()
    print("told", json.dumps([[one.checkpoint.id, one.checkpoint.step, one.metrics] for one in found]), flush=True)
"""
MANIFEST = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  workers: 2
  checkpoint: {storage: STORE, keep: 4, scoreAttribute: val.loss, scoreOrder: min}
  template: {spec: {containers: [{name: trainer, image: local, command: [python, train.py]}]}}
"""


def test_ranks_result_and_command_line_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(MANIFEST.replace("STORE", str(tmp_path / "store")))

    def tj(*words: str) -> Said:
        code = main(list(words))
        shown = capfd.readouterr()
        return Said(code, shown.out, shown.err)

    ran = tj("run", "-f", "job.yaml", "--local", "--plain")
    assert ran.code == contract.CLI_OK, ran.err
    told = re.search(r"told (\[.*\])$", ran.out, re.MULTILINE)
    assert told is not None
    listed = json.loads(tj("checkpoints", "list", "digits", "--storage", "store", "-o", "json").out)["items"]
    result = Result.from_path(tmp_path / "store" / "default" / "digits")
    by_loss = sorted(json.loads(told[1]), key=lambda row: -row[2]["val"]["loss"])
    assert [[checkpoint.id, checkpoint.step, m] for checkpoint, m in result.best_checkpoints] == by_loss[-4:]
    assert [[item["id"], item["step"], item["metrics"]] for item in listed] == json.loads(told[1])
    assert [item["step"] for item in listed][-1] == 5
    assert 1 <= len(listed) <= 4
    # The score was in the manifest alone; the job is over, its object gone.
    best = result.get_best_checkpoint("val.loss", "min")
    assert best is not None
    assert [item["id"] for item in listed if "best" in item["marks"]] == [best.id]
    got = tj("model", "get", "digits", "--storage", "store", "-o", "model")
    assert got.code == contract.CLI_OK, got.err
    assert f"{best.id} (step {best.step}): the best by lowest val.loss, 0.5" in got.err
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.txt"]
    assert (tmp_path / "model" / "model.txt").read_text() == str(best.step)
    assert tj("checkpoints", "verify", "digits", "--storage", "store").code == contract.CLI_OK
    removed = tj("checkpoints", "rm", "digits", "--storage", "store", "latest", "--yes")
    assert removed.code == contract.CLI_OK, "the run has completed: nobody goes on from it"
