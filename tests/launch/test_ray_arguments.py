"""Arguments of Ray's classes: those that mean something here are taken, the others are refused with the way out."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import trainjob
from trainjob.compat import ray
from trainjob.launch import ConfigError
from trainjob.launch.handover.ray_arguments import WAYS_OUT


@pytest.mark.parametrize(("made", "argument"), [(made, name) for made, names in WAYS_OUT.items() for name in names])
def test_an_argument_that_is_not_here_is_refused_with_the_way_out(made: str, argument: str) -> None:
    kind = getattr(trainjob, made)
    assert argument not in inspect.signature(kind).parameters
    first = () if made != "TorchTrainer" else (lambda: None,)
    with pytest.raises(TypeError) as caught:
        kind(*first, **{argument: None})
    assert str(caught.value) == f"{made} has no argument {argument!r}: {WAYS_OUT[made][argument]}"


def test_a_misspelt_one_is_still_told_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_failures'"):
        trainjob.FailureConfig(max_failure=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("made", "field"), [(trainjob.ScalingConfig(), "num_workers"), (trainjob.RunConfig(), "name")])
def test_an_assignment_to_a_setting_tells_how_it_is_changed(made: Any, field: str) -> None:
    kind = type(made).__name__
    with pytest.raises(dataclasses.FrozenInstanceError) as caught:
        setattr(made, field, 2)
    assert str(caught.value) == (
        f"{kind}.{field} cannot be assigned: give it when you make the {kind}, or make another one with "
        f"dataclasses.replace(..., {field}=...)"
    )
    with pytest.raises(AttributeError):
        made.nothing = 1


def test_a_store_that_is_named_in_a_query_is_refused_with_the_way_out() -> None:
    """pyarrow reads it from there."""
    with pytest.raises(ConfigError, match=r"storage_path.*AWS_ENDPOINT_URL_S3.*s3://bucket/folder\b"):
        trainjob.RunConfig(storage_path="s3://bucket/folder?endpoint_override=http://localhost:9000&scheme=http")
    with pytest.raises(ConfigError, match="AWS_REGION"):
        trainjob.RunConfig(storage_path="s3://bucket/folder?region=us-west-2")


def test_what_has_no_effect_says_so_and_defaults_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray.train.FailureConfig(max_failures=2, controller_failure_limit=3, max_preemption_failures=-1)
    with pytest.warns(UserWarning, match="preemptions are never counted"):
        ray.train.FailureConfig(max_preemption_failures=2)
    with pytest.warns(UserWarning, match="stopped together"):
        ray.train.FailureConfig(relax_collectives_on_preemption=True)
    with pytest.warns(UserWarning, match="terminationGracePeriodSeconds"):
        ray.train.FailureConfig(preemption_grace_s=5.0)
    with pytest.warns(UserWarning, match="logging_config has no effect"):
        ray.train.RunConfig(logging_config=ray.train.LoggingConfig(log_level="ERROR"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: trainjob.ValidationConfig(fn=3), "give a function of a checkpoint"),  # type: ignore[arg-type]
        (lambda: trainjob.ValidationConfig(fn=len, task_config={}), "give a ValidationTaskConfig"),  # type: ignore[arg-type]
        (lambda: trainjob.ValidationTaskConfig(timeout_s=0), "give seconds above 0"),
        (lambda: trainjob.ValidationTaskConfig(fn_kwargs=[1]), "give a dict"),  # type: ignore[arg-type]
        (lambda: trainjob.TorchTrainer(print, validation_config=len), "give a ValidationConfig"),  # type: ignore[arg-type]
    ],
)
def test_a_validation_that_cannot_be_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        given()


def filesystem(kind: str, **more: Any) -> Any:
    """What is read of a pyarrow filesystem."""
    return SimpleNamespace(type_name=kind, **more)


@pytest.mark.parametrize(
    ("path", "given", "found"),
    [
        ("/data/runs", filesystem("local"), "/data/runs"),
        ("bucket/runs", filesystem("s3"), "s3://bucket/runs"),
        ("runs", filesystem("subtree", base_path="bucket/team/", base_fs=filesystem("s3")), "s3://bucket/team/runs"),
    ],
)
def test_a_filesystem_becomes_part_of_the_storage_path(path: str, given: Any, found: str) -> None:
    run = trainjob.RunConfig(storage_path=path, storage_filesystem=given)
    assert (run.storage_path, run.storage_filesystem) == (found, None)
    assert dataclasses.replace(run, name="again").storage_path == found
    assert trainjob.Checkpoint(path, filesystem=given).path == found


def test_a_filesystem_that_is_no_store_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"storage_filesystem.*'gcs' is none of .*s3://bucket/folder"):
        trainjob.RunConfig(storage_path="bucket/runs", storage_filesystem=filesystem("gcs"))
    with pytest.raises(ConfigError, match="give storage_path too"):
        trainjob.RunConfig(storage_filesystem=filesystem("local"))
    with pytest.raises(trainjob.CheckpointError, match="'hdfs' is none of"):
        trainjob.Checkpoint("/x", filesystem=filesystem("hdfs"))
