"""defaults.py: what a spec means where it leaves something out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trainjobs import document, json_values
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob, TrainJobSpec
from trainjob_api.validation import parse_trainjob

TRAINER = "spec.template.spec.containers.0"


def job(changes: dict[str, Any] | None = None) -> TrainJob:
    return parse_trainjob(document(changes))


def gpus(count: object, name: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {f"{TRAINER}.resources": {"limits": {"cpu": "4", name: count}}}


def test_the_container_named_trainer_trains() -> None:
    spec = TrainJobSpec(template={"spec": {"containers": [{"name": "log"}, {"name": "trainer", "image": "x"}]}})
    assert defaults.trainer_container(spec) == (1, {"name": "trainer", "image": "x"})


def test_else_the_first_one() -> None:
    spec = TrainJobSpec(template={"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})
    assert defaults.trainer_container(spec) == (0, {"name": "a"})


def test_command_and_args_together() -> None:
    assert defaults.command_of({"command": ["python", "t.py"], "args": ["--x", "1"]}) == ["python", "t.py", "--x", "1"]
    assert defaults.command_of({"args": ["--x"]}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        (gpus(8), 8),
        (gpus("4"), 4),
        (gpus(2, "amd.com/gpu"), 2),
        (gpus(2, "example.com/gpu"), 1),
        ({**gpus(8), f"{TRAINER}.command": ["torchrun", "train.py"]}, 1),
        ({**gpus(8), f"{TRAINER}.command": ["mpirun", "./train"]}, 8),
        ({"spec.processesPerWorker": 2, f"{TRAINER}.command": ["mpirun", "./train"]}, 2),
        ({**gpus(8), f"{TRAINER}.command": ["bash", "-c", "python train.py"]}, 1),
        ({**gpus(8), "spec.runtime.agent": "Disabled"}, 1),
        ({**gpus(8), "spec.processesPerWorker": 3}, 3),
        ({"spec.processesPerWorker": 3}, 3),
    ],
)
def test_processes_per_worker(changes: dict[str, Any], expected: int) -> None:
    assert defaults.processes_per_worker(job(changes).spec) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "gloo"),
        (gpus(1), "nccl"),
        (gpus(1, "amd.com/gpu"), "nccl"),
        ({**gpus(1), "spec.rendezvous.backend": "gloo"}, "gloo"),
    ],
)
def test_backend_is_settled_here_so_that_all_ranks_agree(changes: dict[str, Any], expected: str) -> None:
    assert defaults.rendezvous_backend(job(changes).spec) == expected


def test_storage_is_the_jobs_own_folder() -> None:
    changes = {"spec.checkpoint.storage": "/mnt/ckpt/", "metadata.namespace": "team"}
    assert defaults.job_storage(job(changes)) == "/mnt/ckpt/team/digits"
    assert defaults.job_storage(job()) is None


def test_agent_spec_is_whole() -> None:
    changes = {
        "spec.checkpoint": {
            "storage": "/c",
            "resumeFrom": "none",
            "keep": 3,
            "scoreAttribute": "acc",
            "scoreOrder": "min",
        },
        "spec.rendezvous": {"port": 3000, "timeoutSeconds": 60},
        "spec.runtime": {"prefork": "Never", "preload": ["torch"]},
        **gpus(2),
    }
    assert defaults.agent_spec(job(changes)) == {
        "processes_per_worker": 2,
        "rendezvous_port": 3000,
        "storage": "/c/default/digits",
        "resume_from": "none",
        "keep": 3,
        "score_attribute": "acc",
        "score_order": "min",
        "strict": False,
        "on_upload_failure": "Continue",
        "workers": 2,
        "prefork": "Never",
        "preload": ["torch"],
        "recycle": True,
    }
    assert set(defaults.agent_spec(job())) == set(contract.AgentSpec.__annotations__)


@pytest.mark.parametrize(
    ("staging", "limits", "recycles"),
    [
        ({}, {}, True),
        ({"sizeLimit": "20Gi"}, {}, False),
        ({"sizeLimit": "20Gi", "medium": "Memory"}, {}, True),
        ({"medium": "Memory"}, {"ephemeral-storage": "1Gi"}, True),
        ({}, {"memory": "1Gi"}, True),
        ({}, {"ephemeral-storage": "1Gi"}, False),
    ],
)
def test_files_wait_to_be_written_over_where_a_volume_shows_its_room(
    staging: dict[str, Any], limits: dict[str, Any], recycles: bool
) -> None:
    changes: dict[str, Any] = {"spec.checkpoint": {"storage": "/c", "staging": staging}}
    made = job(changes)
    for container in made.spec.template["spec"]["containers"]:
        container["resources"] = {"limits": limits}
    assert defaults.agent_spec(made)["recycle"] == recycles


POD_KEYS = ["spec", "containers", "name", "command", "args", "resources", "limits", "nvidia.com/gpu", "x"]


@given(template=st.dictionaries(st.sampled_from(["spec", "metadata"]), json_values(POD_KEYS)))
def test_no_template_makes_them_raise(template: dict[str, Any]) -> None:
    """The operator meets objects that were stored before a rule existed."""
    stored = TrainJob.model_validate({"metadata": {"name": "a"}, "spec": {"template": template}})
    spec = defaults.agent_spec(stored)
    assert spec["processes_per_worker"] >= 1 and defaults.rendezvous_backend(stored.spec) in ("gloo", "nccl")
    assert isinstance(defaults.command_of(defaults.trainer_container(stored.spec)[1]), list)
