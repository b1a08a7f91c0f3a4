"""What a trainer's settings and a script become as a TrainJob."""

from __future__ import annotations

from typing import Any

import pytest

from trainjob.launch import job as jobs
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchConfig
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import parse_trainjob, validate_spec


def trainer(scaling: ScalingConfig | None = None, run: RunConfig | None = None, **more: Any) -> TrainJob:
    command = ("python3", "-m", "trainjob.launch.worker", "payload")
    return jobs.from_trainer(
        jobs.TrainerJob(
            command=command,
            name="digits",
            scaling=scaling or ScalingConfig(),
            run=run or RunConfig(storage_path="/data"),
            torch=TorchConfig(),
            **more,
        )
    )


def container(job: TrainJob) -> dict[str, Any]:
    return defaults.trainer_container(job.spec)[1]


def test_a_trainer_becomes_a_valid_train_job() -> None:
    run = RunConfig(
        storage_path="/data",
        failure_config=FailureConfig(max_failures=2),
        checkpoint_config=CheckpointConfig(
            num_to_keep=3, checkpoint_score_attribute="accuracy", checkpoint_score_order="min"
        ),
        worker_runtime_env={"env_vars": {"A": "1"}},
    )
    job = trainer(ScalingConfig(num_workers=4, resources_per_worker={"CPU": 2, "memory": 1024**3}), run)
    assert validate_spec(job.spec, job.metadata.name) == []
    assert (job.spec.workers, defaults.processes_per_worker(job.spec)) == (4, 1)
    assert job.spec.failure_policy.max_failures == 2
    assert (job.spec.checkpoint.keep, job.spec.checkpoint.score_attribute, job.spec.checkpoint.score_order) == (
        3,
        "accuracy",
        "min",
    )
    assert defaults.job_storage(job) == "/data/default/digits"
    assert container(job)["env"] == [{"name": "A", "value": "1"}]
    assert container(job)["resources"] == {"requests": {"cpu": "2", "memory": str(1024**3)}}


@pytest.mark.parametrize(
    ("scaling", "packed"),
    [
        (ScalingConfig(num_workers=3), (3, 1)),
        (ScalingConfig(num_workers=4, use_gpu=True), (1, 4)),
        (ScalingConfig(num_workers=16, use_gpu=True), (2, 8)),
        (ScalingConfig(num_workers=9, use_gpu=True), (3, 3)),
        (ScalingConfig(num_workers=11, use_gpu=True), (11, 1)),
        (ScalingConfig(num_workers=8, use_gpu=True, gpus_per_pod=4), (2, 4)),
        (ScalingConfig(num_workers=2, use_gpu=True, gpus_per_pod=4), (1, 2)),
        (ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 2}), (4, 1)),
        (ScalingConfig(num_workers=(2, 6)), (6, 1)),
        (ScalingConfig(num_workers=(8, 32), use_gpu=True), (4, 8)),
        (ScalingConfig(num_workers=(4, 6), use_gpu=True), (3, 2)),
        (ScalingConfig(num_workers=(4, 8), use_gpu=True, gpus_per_pod=4), (2, 4)),
    ],
)
def test_ranks_are_packed_into_equal_pods(scaling: ScalingConfig, packed: tuple[int, int]) -> None:
    assert jobs.pack(scaling) == packed
    job = trainer(scaling)
    assert defaults.gpu_limit(container(job)) == scaling.gpus_per_worker * packed[1]


def test_a_size_that_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpus_per_pod"):
        jobs.pack(ScalingConfig(num_workers=6, use_gpu=True, gpus_per_pod=4))
    with pytest.raises(ConfigError, match="gpus_per_pod"):
        jobs.pack(ScalingConfig(num_workers=(2, 8), use_gpu=True, gpus_per_pod=4))
    with pytest.raises(ConfigError, match="gpus_per_pod"):
        jobs.pack(ScalingConfig(num_workers=2, use_gpu=True, gpus_per_pod=4, resources_per_worker={"GPU": 2}))


def test_a_ray_resource_without_a_full_name_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="special"):
        trainer(ScalingConfig(resources_per_worker={"special": 1}))


@pytest.mark.parametrize(
    ("strategy", "kind", "strength"),
    [
        ("PACK", "podAffinity", "preferred"),
        ("STRICT_PACK", "podAffinity", "required"),
        ("SPREAD", "podAntiAffinity", "preferred"),
        ("STRICT_SPREAD", "podAntiAffinity", "required"),
    ],
)
def test_placement_becomes_pod_affinity(strategy: str, kind: str, strength: str) -> None:
    affinity = trainer(ScalingConfig(num_workers=2, placement_strategy=strategy)).spec.template["spec"]["affinity"]
    assert list(affinity) == [kind]
    (name, terms), *_ = affinity[kind].items()
    term = terms[0] if strength == "required" else terms[0]["podAffinityTerm"]
    assert name.startswith(strength)
    assert term["labelSelector"]["matchLabels"] == {contract.LABEL_JOB: "digits"}


def test_accelerator_type_and_labels_choose_nodes() -> None:
    spec = trainer(ScalingConfig(use_gpu=True, accelerator_type="A100", label_selector={"zone": "a"})).spec.template[
        "spec"
    ]
    expression = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ][0]["matchExpressions"][0]
    assert expression["key"] == "nvidia.com/gpu.product"
    assert "NVIDIA-A100-SXM4-80GB" in expression["values"]
    assert spec["nodeSelector"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("given", "name"),
    [("digits", "digits"), ("my-run", "my-run"), ("job-1", "job-1")],
)
def test_a_name_that_is_one_stays(given: str, name: str) -> None:
    assert jobs.job_name(given) == name


@pytest.mark.parametrize("given", ["Run A", "run a", "RUN-A", "7seven", "übung", "a" * 200, "...", "a.b"])
def test_any_name_becomes_a_valid_one_and_the_same_each_time(given: str) -> None:
    name = jobs.job_name(given)
    assert name == jobs.job_name(given)
    assert validate_spec(trainer().spec, name) == []


def test_names_that_would_fall_together_stay_apart() -> None:
    names = {jobs.job_name(given) for given in ("run-a", "Run-a", "run a", "run.a", "run_a")}
    assert len(names) == 5


def test_new_names_are_new_and_valid() -> None:
    names = {jobs.unique_name(stem) for stem in ["train_func"] * 3 + ["7", "", "x" * 99]}
    assert len(names) == 6
    assert all(validate_spec(trainer().spec, name) == [] for name in names)


def test_a_script_becomes_a_train_job_that_a_manifest_could_hold() -> None:
    job = jobs.from_script(
        jobs.ScriptJob(
            command=("/usr/bin/python3", "dir/my train.py", "--lr", "$HOME"),
            workers=2,
            storage="~/runs",
            environment={"A": "1"},
        )
    )
    assert job.metadata.name.startswith("my-train-")
    assert (job.spec.checkpoint.storage or "").startswith("/")
    assert container(job)["command"][-1] == "$$HOME"
    parsed = parse_trainjob(
        {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "metadata": {"name": job.metadata.name},
            "spec": job.spec.to_json(),
        }
    )
    assert parsed.spec == job.spec


@pytest.mark.parametrize("most", [-1, 10])
def test_the_trainers_restarts_are_as_many_as_it_was_told(most: int) -> None:
    """No other rule ends the job sooner, unless it is asked for."""
    for given, kept in ((FailureConfig(max_failures=most), 0), (FailureConfig(most, no_progress_attempts=3), 3)):
        policy = jobs.from_trainer(
            jobs.TrainerJob(
                command=("python", "x.py"),
                name="x",
                scaling=ScalingConfig(),
                run=RunConfig(failure_config=given),
                torch=TorchConfig(),
            )
        ).spec.failure_policy
        assert (policy.max_failures, policy.no_progress_attempts) == (most, kept)


def test_a_pair_of_numbers_is_an_elastic_job() -> None:
    spec = trainer(ScalingConfig(num_workers=(8, 32), use_gpu=True)).spec
    assert spec.elastic is not None and (spec.workers, spec.processes_per_worker) == (4, 8)
    assert (spec.elastic.min_workers, spec.elastic.max_workers) == (1, 4)
    assert trainer(ScalingConfig(num_workers=2)).spec.elastic is None
