"""Every public name of Ray's training side is answered, or refused by the import in one sentence with the way out."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import trainjob
from support.by_path import module_at
from support.isolation import ROOT
from support.patience import HANG_S
from trainjob.compat.ray_absent import ABSENT, way_out
from trainjob.compat.ray_names import ANSWERED

ray_table = module_at(ROOT / "docs" / "ray_table.py")
NAMES: dict[str, list[str]] = ray_table.ray_names()
NEEDS = {
    "ray.train.lightning": ("lightning", "pytorch_lightning"),
    "ray.train.huggingface.transformers": ("transformers",),
    "ray.train.tensorflow.keras": ("keras",),
    "ray.air.integrations.keras": ("keras",),
    "ray.train.xgboost.RayTrainReportCallback": ("xgboost",),
    "ray.train.lightgbm.RayTrainReportCallback": ("lightgbm",),
    "ray.train.lightgbm.get_network_params": ("lightgbm",),
}
"""What stands on a library that is not ours (a module, or a name of it), by one of its names."""


def test_the_list_is_that_of_a_whole_ray() -> None:
    assert len(NAMES["ray.train"]) > 30 and len(NAMES["ray.tune"]) > 40 and len(NAMES["ray.train.torch"]) > 10


@pytest.mark.parametrize("module", sorted({*NAMES, *ANSWERED}))
def test_a_line_that_imports_from_ray_works_or_tells_the_way_out(module: str) -> None:
    for name in {*NAMES.get(module, ()), *ANSWERED.get(module, ())}:
        if module == "ray.train.torch" and name in ANSWERED[module] and importlib.util.find_spec("torch") is None:
            continue
        needed = NEEDS.get(module, NEEDS.get(f"{module}.{name}", ()))
        if needed and not any(map(importlib.util.find_spec, needed)) and name in ANSWERED[module]:
            with pytest.raises(ImportError, match=f"{needed[0]} is not installed here: pip install '{needed[0]}"):
                exec(f"from trainjob.compat.{module} import {name}", {})
            continue
        try:
            exec(f"from trainjob.compat.{module} import {name}", {})
        except ImportError as error:
            assert name not in ANSWERED.get(module, ())
            assert "has no counterpart in TrainJob: " in str(error), str(error)
            advice = way_out(f"{module}.{name}")
            assert advice and str(error).endswith(advice)
        else:
            assert name in ANSWERED[module]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from trainjob.compat.ray.train.lightning import LightningTrainer", "RayDDPStrategy"),
        ("from trainjob.compat.ray.train.huggingface import TransformersTrainer", "transformers.Trainer"),
        ("from trainjob.compat.ray.train import PreemptionError", "leave it out"),
        ("from trainjob.compat.ray.tune import Tuner", "one job per trial"),
        ("from trainjob.compat.ray.tune.logger import LoggerCallback", "trainjob.trackers.Tracker"),
        ("from trainjob.compat.ray.tune.logger import JsonLoggerCallback", "tj history NAME -o json"),
        ("from trainjob.compat.ray import data, train", "prepare_data_loader"),
        ("from trainjob.compat.ray.train import SyncConfig", "RunConfig(storage_path=...)"),
        ("from trainjob.compat.ray.train import reprot", "did you mean ray.train.report?"),
        ("from trainjob.compat.ray.train import ValidationFn", "a type alone"),
        ("import trainjob.compat.ray.rllib.algorithms.ppo", "PyTorch loop of your own"),
        ("from trainjob.compat.ray.train.cross_validation import KFoldSplitter", "in a loop over the folds"),
        ("from trainjob.compat.ray.train.batch_predictor import BatchPredictor", "docs/using-the-model.md"),
        ("from trainjob.compat.ray.train.torch import TorchPredictor", "docs/using-the-model.md"),
        ("from trainjob.compat.ray.train import Trainer", "use ray.train.torch.TorchTrainer"),
        ("from trainjob.compat.ray.train import world_rank", "ray.train.get_context().get_world_rank()"),
        ("from trainjob.compat.ray.air.session import get_world_rank", "ray.train.get_context().get_world_rank()"),
        ("from trainjob.compat.ray.air.session import get_dataset_shard", "prepare_data_loader"),
        ("from trainjob.compat.ray.air.checkpoint import Checkpoint", "use ray.train.Checkpoint"),
        ("from trainjob.compat.ray.exceptions import RayActorError", "worker_failures"),
        ("from trainjob.compat.ray.runtime_env import RuntimeEnv", "worker_runtime_env"),
        ("from trainjob.compat.ray.job_submission import JobSubmissionClient", "`tj submit train.py`"),
        ("from trainjob.compat.ray.util.placement_group import placement_group", "placement_strategy"),
        ("from trainjob.compat.ray.train.nowhere import thing", "ray.train has Checkpoint, "),
    ],
)
def test_what_is_not_there_is_said_by_the_import(line: str, words: str) -> None:
    with pytest.raises(ImportError, match="has no counterpart in TrainJob") as caught:
        exec(line, {})
    assert words in str(caught.value)


def test_a_name_is_found_where_ray_defines_it_too() -> None:
    """Editors import from there."""
    scope: dict[str, object] = {}
    for line in (
        "train._checkpoint import Checkpoint",
        "train.torch.config import TorchConfig",
        "train.torch.torch_trainer import TorchTrainer",
        "train.torch.train_loop_utils import prepare_model",
        "train.v2.torch.torch_trainer import TorchTrainer",
        "train.v2.xgboost.xgboost_trainer import XGBoostTrainer",
    ):
        exec(f"from trainjob.compat.ray.{line}", scope)
        name = line.rpartition(" ")[2]
        assert scope.pop(name) is getattr(trainjob, name)


def test_a_module_of_which_a_part_is_here_tells_the_way_out_of_the_rest() -> None:
    """`from ray import train, tune` runs in scripts that use the loggers alone."""
    scope: dict[str, object] = {}
    exec("from trainjob.compat.ray import tune; from trainjob.compat.ray.tune.logger import TBXLoggerCallback", scope)
    assert "TensorBoardLogger" in str(scope["TBXLoggerCallback"])
    with pytest.raises(AttributeError, match="one job per trial"):
        exec("tune.Tuner", scope)


def test_modules_are_found_in_a_new_process_by_their_full_names() -> None:
    """As pickled functions name them."""
    code = "import trainjob.compat.ray.train.v2.api.config as c; from trainjob.compat.ray.air.session import report; "
    code += "import trainjob; assert c.RunConfig is trainjob.RunConfig and report is trainjob.report; "
    code += "from trainjob.compat.ray.train import *; assert ScalingConfig is trainjob.ScalingConfig; print('torch' in "
    code += "__import__('sys').modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert (run.returncode, run.stdout.strip()) == (0, "False"), run.stderr


def test_a_question_for_an_attribute_is_answered_with_no() -> None:
    from trainjob.compat import ray

    assert hasattr(ray.train, "report") and not hasattr(ray.train, "horovod") and not hasattr(ray, "serve")


def test_every_way_out_is_of_a_name_that_is_not_here() -> None:
    for theirs in ABSENT:
        module, _, name = theirs.rpartition(".")
        assert name not in ANSWERED.get(module, ()), theirs


def test_the_table_of_the_page_is_the_generated_one() -> None:
    text = ray_table.PAGE.read_text(encoding="utf-8")
    assert text == ray_table.page(text), "the names and their page differ: run `make docs`"
