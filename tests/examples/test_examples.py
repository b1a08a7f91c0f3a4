"""The examples run small: their functions in one process that has torch, the notebook's cells with two workers.

For examples/images/README.md, examples/language/README.md, examples/evaluate/README.md and docs/using-the-model.md.
digits and fsdp2 have tests of their own, as their pages tell them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.isolation import ROOT
from support.patience import HANG_S
from support.spoken import said
from trainjob import Result
from trainjob.cli.main import main
from trainjob_api.validation import parse_trainjob

EXAMPLES = ROOT / "examples"

STAGE = """
import importlib.util, json, os, sys
from trainjob import RunConfig, ScalingConfig, TorchTrainer

store, examples = sys.argv[1:]

def module(name, file):
    spec = importlib.util.spec_from_file_location(name, os.path.join(examples, file))
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made

def fit(name, loop, config, origin=None):
    trainer = TorchTrainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=0),
                           run_config=RunConfig(name=name, storage_path=store, verbose=0), resume_from_checkpoint=origin)
    return trainer.fit()

images = {"epochs": 2, "pictures": 640, "batch_size": 8, "width": 8, "lr": 1e-2, "loader_workers": 1, "float16": False}
train = module("images_example", "images/train.py").train
half = fit("images", train, images)
whole = fit("more-images", train, {**images, "epochs": 3}, half.checkpoint)

words = {"steps": 6, "accumulate": 2, "batch_size": 4, "save_every": 3, "warm_up": 2, "width": 32, "layers": 1, "lr": 3e-3}
train = module("language_example", "language/train.py").train
half_words = fit("words", train, {**words, "steps": 6})
whole_words = fit("more-words", train, {**words, "steps": 9}, half_words.checkpoint)

evaluate = module("evaluate_example", "evaluate/evaluate.py").evaluate
seen = fit("evaluation", evaluate, {"job": os.path.join(store, "images"), "best": False, "pictures": 100})

def rows(result):
    return [{"step": row["step"], **row["metrics"]} for row in result.rows]

print(json.dumps([rows(each) for each in (half, whole, half_words, whole_words, seen)]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home)}


def python(words: list[str], folder: Path, given: str | None = None) -> str:
    """What it prints in that folder, which is its home too; it must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        input=given,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_images_language_and_evaluation(tmp_path: Path) -> None:
    said = python(["-c", STAGE, str(tmp_path / "store"), str(EXAMPLES)], tmp_path)
    images, more_images, words, more_words, seen = json.loads(said.splitlines()[-1])

    assert [row["step"] for row in images] == [1, 2]
    assert [row["step"] for row in more_images] == [3], "it goes on behind the epochs that were done"
    assert more_images[-1]["accuracy"] > 0.3, "it has learned: a guess names one of ten"

    assert [row["step"] for row in words] == [3, 6]
    assert [row["step"] for row in more_words] == [9], "it goes on inside the epoch"
    assert more_words[0]["loss"] < words[0]["loss"]
    assert "from step 6" in said
    # (1) of the page: the schedule went on along its cosine, it did not warm up again.
    assert 0 < more_words[0]["lr"] < words[0]["lr"] <= 3e-3

    assert sorted(row["trained_epochs"] for row in seen) == [1, 2]
    assert all(0 <= row["accuracy"] <= 1 for row in seen)

    into = tmp_path / "model"
    words_typed = ["model", "get", str(tmp_path / "store" / "default" / "images"), "-o", str(into)]
    assert main([*words_typed, "--metric", "accuracy", "--mode", "max"]) == 0
    assert [path.name for path in into.iterdir()] == ["model.pt"]


def test_the_notebook_runs_cell_by_cell(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebook" / "train.ipynb").read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells), "the notebook is kept without outputs"
    script = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    said = python(["-"], tmp_path, script)
    found = re.search(r"sin\(1\) is about (0\.\d+)", said)
    assert found is not None and abs(float(found[1]) - 0.84) < 0.2, said


def test_the_notebooks_function_runs_from_its_manifest(tmp_path: Path) -> None:
    words = ["run", "-f", str(EXAMPLES / "notebook" / "trainjob.yaml"), "--local", "--storage", str(tmp_path)]
    shown = said(["-m", "trainjob.cli", *words], ROOT, limit_s=HANG_S, HOME=str(tmp_path), OMP_NUM_THREADS="1")
    result = Result.from_path(str(tmp_path / "default" / "notebook"))
    assert [row["step"] for row in result.rows] == list(range(1, 16)), shown
    assert len(result.best_checkpoints) == 3 and result.best_checkpoints[-1][1]["loss"] < 0.1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/trainjob.yaml")), ids=lambda path: path.parent.name)
def test_manifests_are_valid_and_name_scripts_that_exist(path: Path) -> None:
    job = parse_trainjob(yaml.safe_load(path.read_text(encoding="utf-8")))
    container = job.spec.template["spec"]["containers"][0]
    (script,) = (word for word in container["command"] if word.endswith(".py"))  # `mpirun` comes before Python
    assert (ROOT / script).is_file()
    head = path.read_text(encoding="utf-8").partition("apiVersion")[0]
    for name in re.findall(r"--from-file=(\S+)", head):
        assert (ROOT / name).exists()  # a folder is its files
    for name in re.findall(r"create configmap (\S+)", head):
        assert {"name": name} in [volume.get("configMap") for volume in job.spec.template["spec"]["volumes"]]
