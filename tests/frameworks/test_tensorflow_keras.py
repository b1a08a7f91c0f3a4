"""`fit` of Keras with the real libraries: Keras 3 on one worker, Keras 2 on two under MultiWorkerMirroredStrategy. A killed
rank changes no number; Ray's callback; and what else reads the checkpoint.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.spoken import said
from trainjob import Result

LIMIT_S = 500
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed: make test-frameworks"),
]

FIT = """
import contextlib, os, signal, sys
import numpy as np
import trainjob, trainjob.tensorflow

kind, strike = sys.argv[1], int(sys.argv[2])
trainjob.tensorflow.set_tf_config()
import tensorflow as tf

if kind == "two":
    import tf_keras as keras
    scope = tf.distribute.MultiWorkerMirroredStrategy().scope
else:
    import keras
    scope = contextlib.nullcontext
import trainjob.keras

context = trainjob.get_context()


class Strike(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if (context.attempt, context.rank, epoch) == (1, context.world_size - 1, strike):
            os.kill(os.getpid(), signal.SIGKILL)


def report():
    if kind != "ray":
        return trainjob.keras.ReportCallback(every_n_epochs=2)
    from trainjob.compat.ray.train.tensorflow.keras import ReportCheckpointCallback
    return ReportCheckpointCallback(report_metrics_on=["epoch_end", "train_end"], metrics={"error": "mae"})


keras.utils.set_random_seed(1)
with scope():
    # Keras 2 draws what Dropout leaves out from where nobody can bring it back.
    dropout = [] if kind == "two" else [keras.layers.Dropout(0.2)]
    layers = [keras.layers.Input((4,)), keras.layers.Dense(16, "tanh"), *dropout, keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = np.sin(x).sum(axis=1, keepdims=True)
begin = trainjob.keras.load(model)
print("begins at epoch", begin, flush=True)
settings = {"batch_size": 16, "shuffle": False, "validation_data": (x, y), "verbose": 0}
model.fit(x, y, epochs=6, initial_epoch=begin, callbacks=[Strike(), report()], **settings)
"""


def run(here: Path, name: str, kind: str, strike: int) -> str:
    """What is shown."""
    (here / "fit.py").write_text(FIT)
    workers = "2" if kind == "two" else "1"
    job = ["--workers", workers, "--name", name, "--storage", str(here), "--prefork", "Never", "--max-failures", "1"]
    job += ["--env", "TF_USE_LEGACY_KERAS=1"] if kind == "two" else []
    return said(["-m", "trainjob.cli.main", "run", "fit.py", *job, "--", kind, str(strike)], here, limit_s=LIMIT_S)


@pytest.mark.parametrize(("kind", "begins"), [("one", 4), ("two", 4), ("ray", 5)])
def test_fit_goes_on_at_the_next_epoch_with_the_same_numbers(tmp_path: Path, kind: str, begins: int) -> None:
    run(tmp_path, "plain", kind, -1)
    shown = run(tmp_path, "struck", kind, 5)
    assert shown.count("begins at epoch 0") >= 1 and f"begins at epoch {begins}" in shown, shown
    plain, struck = (Result.from_path(str(tmp_path / "default" / name)).rows for name in ("plain", "struck"))
    expected = [row["metrics"] for row in plain]
    if kind == "ray":
        assert all(set(metrics) <= {"error"} for metrics in expected) and len(expected) == 7
    else:
        assert [metrics["epoch"] for metrics in expected] == [1, 2, 3, 4, 5, 6]
        assert expected[-1]["val_loss"] < expected[0]["val_loss"]
    first = [row["metrics"] for row in struck if row["attempt"] == 1]
    second = [row["metrics"] for row in struck if row["attempt"] == 2]
    assert first == expected[: len(first)] and len(first) >= begins, (
        "a report without a checkpoint may go with its rank"
    )
    assert second == expected[begins:]


READS = """
import sys
import keras
model = keras.models.load_model(sys.argv[1])
print("read", int(model.optimizer.iterations.numpy()), [layer.name for layer in model.layers][:1] != [])
"""


def test_keras_alone_reads_the_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, "plain", "one", -1)
    newest = Result.from_path(str(tmp_path / "default" / "plain")).checkpoint
    assert newest is not None
    shown = said(["-c", READS, str(Path(newest.path) / "model.keras")], tmp_path, limit_s=LIMIT_S)
    assert "read 24 True" in shown, "six epochs of four steps"


OTHER = """
import sys
import trainjob
if checkpoint := trainjob.get_checkpoint():
    import keras, trainjob.keras
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)] if sys.argv[1] == "built" else [])
    trainjob.keras.load(model)
trainjob.report({}, checkpoint=trainjob.Checkpoint.from_dict({"step": 1}), step=1)
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("built", r"holds no rest\.npz: it was not reported by trainjob\.keras\.ReportCallback"),
        ("bare", "build the model"),
    ],
)
def test_what_cannot_be_loaded_is_told(tmp_path: Path, kind: str, words: str) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    job = ["--workers", "1", "--name", "other", "--storage", str(tmp_path), "--prefork", "Never", "--max-failures", "1"]
    with pytest.raises(AssertionError, match=words):
        said(["-m", "trainjob.cli.main", "run", "other.py", *job, "--", kind], tmp_path, limit_s=LIMIT_S)
