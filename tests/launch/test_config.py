"""Settings are checked where they enter, and each error names its field."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from trainjob.launch import fitting
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover.callbacks import UserCallback
from trainjob.launch.handover.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchConfig
from trainjob.launch.trainer import TorchTrainer


@pytest.mark.parametrize(
    ("kind", "arguments", "field"),
    [
        (ScalingConfig, {"num_workers": -1}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": True}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": 1.5}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": (4, 1)}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": (0, 4)}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": (1, 2, 4)}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"num_workers": (True, 4)}, "ScalingConfig.num_workers"),
        (ScalingConfig, {"use_gpu": "yes"}, "ScalingConfig.use_gpu"),
        (ScalingConfig, {"placement_strategy": "NEAR"}, "ScalingConfig.placement_strategy"),
        (ScalingConfig, {"accelerator_type": 100}, "ScalingConfig.accelerator_type"),
        (ScalingConfig, {"resources_per_worker": 4}, "ScalingConfig.resources_per_worker"),
        (ScalingConfig, {"resources_per_worker": {"CPU": -1}}, "ScalingConfig.resources_per_worker['CPU']"),
        (ScalingConfig, {"resources_per_worker": {"GPU": 1}}, "GPU"),
        (ScalingConfig, {"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, "GPU"),
        (ScalingConfig, {"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "GPU"),
        (ScalingConfig, {"gpus_per_pod": 4}, "ScalingConfig.gpus_per_pod"),
        (ScalingConfig, {"label_selector": ["a"]}, "ScalingConfig.label_selector"),
        (FailureConfig, {"max_failures": -2}, "FailureConfig.max_failures"),
        (CheckpointConfig, {"num_to_keep": 0}, "CheckpointConfig.num_to_keep"),
        (CheckpointConfig, {"checkpoint_score_attribute": ""}, "CheckpointConfig.checkpoint_score_attribute"),
        (CheckpointConfig, {"checkpoint_score_order": "best"}, "CheckpointConfig.checkpoint_score_order"),
        (TorchConfig, {"backend": "mpi"}, "TorchConfig.backend"),
        (TorchConfig, {"timeout_s": 0}, "TorchConfig.timeout_s"),
        (RunConfig, {"name": ""}, "RunConfig.name"),
        (RunConfig, {"storage_path": "gs://bucket/runs"}, "RunConfig.storage_path"),
        (RunConfig, {"storage_path": "s3:/bucket/runs"}, "RunConfig.storage_path"),
        (RunConfig, {"storage_path": ""}, "RunConfig.storage_path"),
        (RunConfig, {"verbose": "no"}, "RunConfig.verbose"),
        (RunConfig, {"failure_config": {"max_failures": 2}}, "RunConfig.failure_config"),
        (RunConfig, {"callbacks": [print]}, "RunConfig.callbacks"),
        (RunConfig, {"stop": {}}, "RunConfig.stop"),
        (RunConfig, {"stop": {"loss": "low"}}, "RunConfig.stop"),
        (RunConfig, {"stop": 3}, "RunConfig.stop"),
        (RunConfig, {"worker_runtime_env": {"env_vars": {"A": 1}}}, "env_vars"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    kind: type[Any], arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**arguments)
    assert field in str(caught.value)
    assert ": " in str(caught.value)


def test_an_argument_that_has_nothing_to_act_on_is_accepted_with_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ScalingConfig(trainer_resources={"CPU": 1}, num_workers=2)
    assert [str(w.message).split(" ")[0] for w in caught] == ["ScalingConfig.trainer_resources"]
    assert caught[0].filename == __file__


def test_absent_parts_become_their_defaults() -> None:
    run = RunConfig(failure_config=None, checkpoint_config=None, callbacks=None)  # type: ignore[arg-type]
    assert run.failure_config == FailureConfig(max_failures=0)
    assert run.checkpoint_config == CheckpointConfig()
    assert run.callbacks == ()


def test_gpus_of_a_rank() -> None:
    assert ScalingConfig().gpus_per_worker == 0
    assert ScalingConfig(use_gpu=True).gpus_per_worker == 1
    assert ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 2}).gpus_per_worker == 2


def test_callbacks_are_kept_in_their_order() -> None:
    first, second = UserCallback(), UserCallback()
    assert RunConfig(callbacks=[first, second]).callbacks == (first, second)


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        ScalingConfig().num_workers = 3  # type: ignore[misc]


def test_the_first_line_of_fit_says_how_many_ranks_there_may_be() -> None:
    said = [fitting.opening("digits", ScalingConfig(num_workers=number), "/s") for number in (2, (2, 8))]
    assert said == ["digits: 2 ranks, results in /s", "digits: 2 to 8 ranks (elastic), results in /s"]


def test_a_trainer_shows_what_it_was_given_under_ray_trains_names() -> None:
    def loop(config: dict[str, Any]) -> None: ...

    run, scaling = RunConfig(name="digits"), ScalingConfig(num_workers=0)
    trainer = TorchTrainer(loop, train_loop_config={"lr": 1}, run_config=run, scaling_config=scaling)
    assert (trainer.train_loop_per_worker, trainer.train_loop_config) == (loop, {"lr": 1})
    assert (trainer.run_config, trainer.scaling_config) == (run, scaling)
    assert trainer.running_in_local_mode and trainer.backend_config == TorchConfig()
    assert trainer.validation_config is None and TorchTrainer(loop).run_config == RunConfig()
