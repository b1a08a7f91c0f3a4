from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import trainjob
from support.fake_agent import FakeAgent
from trainjob.compat import ray


@pytest.mark.parametrize(
    "name",
    [
        "train.report",
        "train.get_context",
        "train.get_checkpoint",
        "train.Checkpoint",
        "train.CheckpointUploadMode",
        "train.ScalingConfig",
        "train.RunConfig",
        "train.FailureConfig",
        "train.CheckpointConfig",
        "train.Result",
        "train.UserCallback",
        "train.collective.barrier",
        "train.collective.broadcast_from_rank_zero",
        "train.torch.TorchTrainer",
        "train.torch.TorchConfig",
    ],
)
def test_a_name_is_ours(name: str) -> None:
    found: Any = ray
    for part in name.split("."):
        found = getattr(found, part)
    assert found is getattr(trainjob, name.rpartition(".")[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["prepare_model", "prepare_data_loader", "get_device", "get_devices", "enable_reproducibility"]
)
def test_a_torch_name_is_ours(name: str) -> None:
    pytest.importorskip("torch")
    assert getattr(ray.train.torch, name) is getattr(trainjob, name) is getattr(trainjob.torch, name)


def test_a_loop_as_people_write_it(start_agent: Callable[..., FakeAgent]) -> None:
    agent = start_agent()
    ray.shutdown()
    with pytest.warns(UserWarning, match="its arguments are not used"):
        ray.init(address="auto")
    assert ray.is_initialized()
    assert ray.train.get_checkpoint() is None
    for epoch in range(2):
        ray.train.report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_dict({"epoch": epoch}))
    ray.train.collective.barrier()
    with ray.train.get_checkpoint().as_directory() as folder:
        assert os.listdir(folder) == ["checkpoint.pkl"]
    assert ray.train.get_checkpoint().id == "1-1-2"
    assert ray.train.get_context().get_world_size() == 1 and len(agent.reports) == 2
    ray.shutdown()
    assert not ray.is_initialized()


def test_variables_that_init_got_reach_the_workers() -> None:
    from trainjob.launch.job import TrainerJob, from_trainer

    ray.shutdown()
    with pytest.warns(UserWarning, match="Nor is runtime_env's pip"):
        ray.init(runtime_env={"env_vars": {"KEY": "a", "MODE": "b"}, "pip": ["x"]})
    run = ray.train.RunConfig(worker_runtime_env={"env_vars": {"MODE": "own"}})
    scaling, torch = ray.train.ScalingConfig(), trainjob.TorchConfig()
    job = from_trainer(TrainerJob(command=("x",), name="j", scaling=scaling, run=run, torch=torch))
    (container,) = job.spec.template["spec"]["containers"]
    assert container["env"] == [{"name": "KEY", "value": "a"}, {"name": "MODE", "value": "own"}]
    with pytest.raises(ValueError, match="names and values are strings"):
        ray.init(runtime_env={"env_vars": {"KEY": 1}})
    ray.shutdown()
    assert run.environment == {"MODE": "own"}


def test_init_warns_once() -> None:
    ray.shutdown()
    with pytest.warns(UserWarning, match="connects to nothing here"):
        ray.init()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray.init(num_cpus=4)
    ray.shutdown()


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("ray", "remote", "tasks and actors"),
        ("ray", "initi", "did you mean ray.init?"),
        ("ray", "data", "prepare_data_loader"),
        ("ray.tune", "Tuner", "one job per trial"),
        ("ray.train", "reprot", "did you mean ray.train.report?"),
        ("ray.train", "get_dataset_shard", "prepare_data_loader"),
        ("ray.train", "zzzz", "ray.train has Checkpoint, "),
        ("ray.train.torch", "accelerate", "torch.autocast"),
        ("ray.train.torch", "prepare_models", "did you mean ray.train.torch.prepare_model?"),
        ("ray.train.collective", "allreduce", "torch.distributed"),
    ],
)
def test_what_is_absent_names_the_nearest_thing(module: str, name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(import_module(f"trainjob.compat.{module}"), name)
    assert f"{module}.{name} has no counterpart" in str(caught.value) and words in str(caught.value)


def test_import_forms_work() -> None:
    from trainjob.compat.ray.train import Checkpoint, report
    from trainjob.compat.ray.train.torch import TorchTrainer

    from trainjob.compat.ray import train

    assert (train.report, Checkpoint, TorchTrainer) == (report, trainjob.Checkpoint, trainjob.TorchTrainer)
