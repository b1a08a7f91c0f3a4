"""TensorFlow's strategy over several workers with the real library: a Keras model in a loop of its own, as
docs/frameworks.md runs it, and the loops that Keras 3 cannot run there.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

STRUCK = str(Path(__file__).with_name("struck.py"))
EXAMPLE = str(ROOT / "examples" / "keras" / "train.py")
STEPS = ("--steps", "40", "--save-every", "10")
LIMIT_S = 500
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed: make test-frameworks"),
]


def run(here: Path, name: str, *words: str, workers: int = 2) -> list[str]:
    job = ["--workers", str(workers), "--name", name, "--storage", str(here), "--prefork", "Never"]
    return ["-m", "trainjob.cli.main", "run", words[0], *job, "--max-failures", "1", "--", *words[1:]]


def losses(here: Path, name: str) -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


def test_a_keras_model_in_a_loop_of_its_own_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    said(run(tmp_path, "plain", EXAMPLE, *STEPS), tmp_path, limit_s=LIMIT_S)
    shown = said(run(tmp_path, "struck", STRUCK, "3", EXAMPLE, *STEPS), tmp_path, limit_s=LIMIT_S)
    assert "attempt 2 resumes from checkpoint 1-1-2" in shown, shown
    expected = losses(tmp_path, "plain")
    assert sorted(expected) == [10, 20, 30, 40] and expected[40] < expected[10]
    assert losses(tmp_path, "struck") == expected


LOOPS = """
import sys
import numpy as np
FIRST
trainjob.tensorflow.set_tf_config()
import keras
import tensorflow as tf

def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

x = np.ones((8, 4), "float32")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
made().fit(x, x[:, :1], verbose=0)  # under no strategy: of this rank alone, as before
print("alone: done")
with strategy.scope():
    model = made()
getattr(model, sys.argv[1])(x, *(() if sys.argv[1] == "predict" else (x[:, :1],)), verbose=0)
print("ran")
"""


@pytest.mark.parametrize(
    ("loop", "first"),
    [
        ("fit", "import trainjob.tensorflow"),
        ("evaluate", "import trainjob.tensorflow"),
        ("predict", "import keras, trainjob.tensorflow"),
    ],
)
def test_keras_3s_own_loops_are_refused_under_the_strategy_of_several_workers(
    tmp_path: Path, loop: str, first: str
) -> None:
    (tmp_path / "loops.py").write_text(LOOPS.replace("FIRST", first))
    words = run(tmp_path, "loops", str(tmp_path / "loops.py"), loop)
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    shown = done.stdout + done.stderr
    assert "alone: done" in shown, shown
    assert done.returncode != 0 and "ran" not in shown.split(), shown
    assert f"Keras 3's {loop}() does not run under MultiWorkerMirroredStrategy: write the training loop" in shown
    assert "pip install tf_keras" in shown


def test_with_one_rank_keras_3_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS.replace("FIRST", "import trainjob.tensorflow"))
    said(run(tmp_path, "loops", str(tmp_path / "loops.py"), "fit", workers=1), tmp_path, limit_s=LIMIT_S)


UNCHANGED = """
import json, os, signal
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]
assert strategy.cluster_resolver.task_id == task["index"]
if os.environ["TRAINJOB_ATTEMPT"] == "1" and task["index"] == 1:
    os.kill(os.getpid(), signal.SIGKILL)
add = tf.function(lambda: strategy.reduce("sum", strategy.run(lambda: tf.constant(1.0)), axis=None))
print("sum", int(add()), flush=True)
"""


def test_a_script_that_names_nothing_of_ours_finds_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(UNCHANGED)
    shown = said(run(tmp_path, "unchanged", str(tmp_path / "loop.py")), tmp_path, limit_s=LIMIT_S)
    assert shown.count("sum 2") == 2, shown
