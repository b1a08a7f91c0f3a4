"""Trainers of frameworks: their functions find all ranks, also after the rank that holds them together was killed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.spoken import said

LIMIT_S = 500
JAX = """
import os, signal
import trainjob
from trainjob import FailureConfig, JaxTrainer, RunConfig, ScalingConfig

def train(config):
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils
    jax.distributed.initialize()  # as scripts have it: done already
    context = trainjob.get_context()
    total = 0
    for step in range(1, 4):
        if (context.rank, context.attempt, step) == (config["killed"], 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if (context.rank, context.attempt, step) == (config["raises"], 1, 2):
            raise ValueError("a mistake of rank 1")
        total += int(multihost_utils.process_allgather(jnp.array(context.rank + 1)).sum())
        trainjob.report({"total": total})
    return [total, context.attempt, len(jax.devices()), len(jax.local_devices()), jax.process_index()]

if __name__ == "__main__":
    result = JaxTrainer(
        train,
        train_loop_config={"killed": KILLED, "raises": RAISES},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="job", storage_path=".", failure_config=FailureConfig(max_failures=1)),
    ).fit()
    print("came back:", result.return_value)
"""
BOOSTED = """
import numpy
from trainjob import RunConfig, ScalingConfig, get_context
from trainjob.compat.ray.train.LIBRARY import RayTrainReportCallback, TRAINER

def rows():
    drawn = numpy.random.default_rng(0).normal(size=(200, 3))
    mine = slice(get_context().rank, None, 2)
    return drawn[mine], (drawn[mine, 0] > 0).astype(float)

def xgboost():
    import xgboost
    data = xgboost.DMatrix(*rows())
    callback = RayTrainReportCallback(frequency=2, metrics={"loss": "train-logloss"})
    parameters = {"objective": "binary:logistic", "eval_metric": "logloss"}
    xgboost.train(parameters, data, 3, evals=[(data, "train")], callbacks=[callback], verbose_eval=False)
    return xgboost.collective.get_world_size()

def lightgbm():
    import lightgbm
    from trainjob.compat.ray.train.lightgbm import get_network_params
    parameters = {"objective": "binary", "metric": "binary_logloss", "verbose": -1, **get_network_params()}
    data = lightgbm.Dataset(*rows())
    callback = RayTrainReportCallback(frequency=2, metrics={"loss": "training-binary_logloss"})
    lightgbm.train(parameters, data, 3, valid_sets=[data], callbacks=[callback])
    return parameters["num_machines"]

if __name__ == "__main__":
    trainer = TRAINER(
        LIBRARY, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="job", storage_path=".")
    )
    result = trainer.fit()
    booster = RayTrainReportCallback.get_model(result.checkpoint)
    rounds = booster.num_boosted_rounds() if "LIBRARY" == "xgboost" else booster.current_iteration()
    print("came back:", result.return_value, rounds, len(result.rows), "loss" in result.metrics)
"""


def came_of(text: str, here: Path) -> str:
    (here / "main.py").write_text(text)
    return said(["main.py"], here, limit_s=LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed: make test-frameworks")
@pytest.mark.parametrize(
    ("workers", "killed", "raises", "expected"),
    [
        pytest.param(2, 0, -1, "[9, 2, 2, 1, 0]", id="the rank that the others look for is killed"),
        pytest.param(2, -1, 1, "[9, 2, 2, 1, 0]", id="a rank raises"),
        pytest.param(1, -1, -1, "[3, 1, 1, 1, 0]", id="alone"),
        pytest.param(0, -1, -1, "[3, 1, 1, 1, 0]", id="in this very process"),
    ],
)
def test_jax_sees_all_ranks(tmp_path: Path, workers: int, killed: int, raises: int, expected: str) -> None:
    text = JAX.replace("WORKERS", str(workers)).replace("KILLED", str(killed)).replace("RAISES", str(raises))
    assert f"came back: {expected}" in came_of(text, tmp_path)


UNCHANGED = """
import os, signal, sys
import jax, numpy
from jax.experimental import multihost_utils

if sys.argv[1] == "nothing":
    jax.distributed.initialize()
elif sys.argv[1] == "variables":
    number, of = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], of, process_id=number)
if os.environ["TRAINJOB_ATTEMPT"] == "1" and jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print("sum", multihost_utils.process_allgather(numpy.array(jax.process_index() + 1)).sum(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed: make test-frameworks")
@pytest.mark.parametrize(("workers", "given"), [(2, "nothing"), (2, "variables"), (1, "nothing")])
def test_a_script_of_jax_that_names_nothing_of_ours_finds_all_ranks(tmp_path: Path, workers: int, given: str) -> None:
    (tmp_path / "loop.py").write_text(UNCHANGED)
    words = ["-m", "trainjob.cli", "run", "loop.py", "--workers", str(workers), "--plain", "--", given]
    assert said(words, tmp_path, limit_s=LIMIT_S).count(f"sum {sum(range(workers + 1))}") == workers


IN_A_POD = """
import os
os.environ["KUBERNETES_SERVICE_HOST"] = "127.0.0.1"  # and there is no token
import jax
import trainjob.jax
from trainjob.session import calls
from types import SimpleNamespace
of = calls.get_context()
calls.get_context = lambda: SimpleNamespace(world_size=2, rank=of.rank, local_rank=0, local_world_size=1)
trainjob.jax.initialize()
print("sees", len(jax.devices()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed: make test-frameworks")
def test_jax_asks_no_api_server_what_the_job_knows(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(IN_A_POD)
    words = ["-m", "trainjob.cli", "run", "loop.py", "--workers", "2", "--plain"]
    assert said(words, tmp_path, limit_s=LIMIT_S).count("sees 2") == 2


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    ("library", "trainer", "reports"), [("xgboost", "XGBoostTrainer", 4), ("lightgbm", "LightGBMTrainer", 3)]
)
def test_boosters_with_rays_names(tmp_path: Path, library: str, trainer: str, reports: int) -> None:
    """Metrics come with each round, boosters with every second and the last; two ranks have one. XGBoost's callback
    learns only afterwards which round was the last.
    """
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    text = BOOSTED.replace("LIBRARY", library).replace("TRAINER", trainer)
    assert f"came back: 2 3 {reports} True" in came_of(text, tmp_path)


TENSORFLOW = """
import json, os, signal
import trainjob
from trainjob import FailureConfig, RunConfig, ScalingConfig, TensorflowTrainer

def train():
    context = trainjob.get_context()
    said = json.loads(os.environ["TF_CONFIG"])
    trainjob.report({"rank": context.rank})
    if (context.rank, context.attempt) == (1, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    trainjob.barrier()
    return [context.attempt, len(set(said["cluster"]["worker"])), said["task"]]

if __name__ == "__main__":
    trainer = TensorflowTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="job", storage_path=".", failure_config=FailureConfig(max_failures=1)),
    )
    print("came back:", trainer.fit().return_value)
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
def test_tensorflow_is_told_of_the_ranks_of_each_attempt(tmp_path: Path) -> None:
    assert "came back: [2, 2, {'type': 'worker', 'index': 0}]" in came_of(TENSORFLOW, tmp_path)
