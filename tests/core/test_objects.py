"""The pod and the Service: what is added to the user's template, and what is left alone."""

from __future__ import annotations

import copy
import json
from typing import Any

from support.core import T0, TEMPLATE, make_job
from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, TrainJobStatus
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods.objects import headless_service, worker_pod

HERE = Installation(coordinator_url="http://operator:8080/", agent_command=("agent",))
LOCAL = Installation(coordinator_url="http://127.0.0.1:1", any_master_port=True)


def env_of(pod: dict[str, Any], at: int = 0) -> dict[str, Any]:
    entries = pod["spec"]["containers"][at]["env"]
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names)), "a variable is set twice"
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


def two_listed(**fields: Any) -> Any:
    return make_job(TrainJobStatus(slots="3,5", next_slot=6), **fields)


def plain_job(**fields: Any) -> Any:
    attempt = Attempt(
        number=66, state="Running", started_at=T0, members="3,5", workers=2, world_size=2, cause="Started"
    )
    return make_job(TrainJobStatus(slots="3,5", attempt=attempt), runtime={"agent": "Disabled"}, **fields)


def test_the_agent_runs_the_users_command() -> None:
    template = {
        "spec": {
            "containers": [
                {"name": "side"},
                {"name": "trainer", "command": ["python", "train.py"], "args": ["--lr", "1"]},
            ]
        }
    }
    pod = worker_pod(two_listed(template=template), 5, HERE)
    side, trainer = pod["spec"]["containers"]
    assert trainer["command"] == ["agent", "--", "python", "train.py", "--lr", "1"]
    assert "args" not in trainer
    assert side == {"name": "side"}


def test_identity_of_a_pod() -> None:
    pod = worker_pod(two_listed(), 5, HERE)
    assert pod["metadata"]["name"] == "digits-5"
    assert pod["metadata"]["namespace"] == "ml"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"], pod["spec"]["restartPolicy"]) == (
        "digits-5",
        "digits",
        "Never",
    )


def test_environment_for_the_agent() -> None:
    env = env_of(worker_pod(two_listed(checkpoint={"storage": "/data", "keep": 2}), 5, HERE))
    assert env["TRAINJOB_SLOT"] == "5"
    assert env["TRAINJOB_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert env["TRAINJOB_COORDINATOR"] == "http://operator:8080"
    assert env["TRAINJOB_WORK_DIR"] == contract.WORK_DIR
    assert json.loads(env["TRAINJOB_AGENT_SPEC"])["storage"] == "/data/ml/digits"
    assert "TRAINJOB_MASTER_PORT_ANY" not in env
    assert env_of(worker_pod(two_listed(), 5, LOCAL))["TRAINJOB_MASTER_PORT_ANY"] == "1"


def test_what_a_reader_expects_with_the_agent() -> None:
    env = env_of(worker_pod(two_listed(processes_per_worker=4), 5, HERE))
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) == (
        "4",
        "8",
        "digits-3.digits",
        "29500",
    )
    assert "LOCAL_RANK" not in env


def test_plain_mode_is_environment_alone() -> None:
    pod = worker_pod(plain_job(), 5, HERE)
    trainer, env = pod["spec"]["containers"][0], env_of(pod)
    assert trainer["command"] == ["python", "train.py"]
    assert "volumes" not in pod["spec"]
    assert (env["RANK"], env["NODE_RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (
        "1",
        "1",
        "2",
        "0",
        "1",
    )
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"], env["PET_NODE_RANK"]) == ("2", "1", "1")
    assert env["MASTER_ADDR"] == env["PET_MASTER_ADDR"] == "digits-3.digits"
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == str(29500 + 66 % 64)
    assert env["TRAINJOB_ATTEMPT"] == "66"
    assert "TRAINJOB_COORDINATOR" not in env


def test_plain_launchers_start_one_process_per_gpu() -> None:
    container = {"name": "trainer", "command": ["torchrun", "train.py"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
    env = env_of(worker_pod(plain_job(template={"spec": {"containers": [container]}}), 3, HERE))
    assert (env["PET_NPROC_PER_NODE"], env["WORLD_SIZE"]) == ("8", "2")


def test_pods_of_one_machine_meet_on_loopback() -> None:
    assert env_of(worker_pod(plain_job(), 5, LOCAL))["MASTER_ADDR"] == "127.0.0.1"


def test_the_users_variables_and_ours() -> None:
    container = {
        "name": "trainer",
        "command": ["python", "x.py"],
        "env": [{"name": "MASTER_PORT", "value": "1"}, {"name": "TRAINJOB_SLOT", "value": "9"}],
    }
    env = env_of(worker_pod(two_listed(template={"spec": {"containers": [container]}}), 5, HERE))
    assert env["MASTER_PORT"] == "1"
    assert env["TRAINJOB_SLOT"] == "5"


def test_the_template_stays_as_it_is() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["metadata"] = {"labels": {"team": "vision", "trainjob.dev/slot": "99"}, "annotations": {"a": "b"}}
    template["spec"] |= {
        "volumes": [{"name": "data"}],
        "affinity": {"podAffinity": {"x": 1}},
        "futureField": {"deep": [1]},
    }
    before = copy.deepcopy(template)
    job = two_listed(template=template, checkpoint={"staging": {"medium": "Memory", "sizeLimit": "1Gi"}})
    pod = worker_pod(job, 5, HERE, avoid_nodes=("bad-1", "bad-2"))
    assert template == before
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["labels"]["trainjob.dev/slot"] == "5"
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["spec"]["futureField"] == {"deep": [1]}
    assert pod["spec"]["volumes"][:2] == [
        {"name": "data"},
        {"name": "trainjob-work", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    affinity = pod["spec"]["affinity"]
    assert affinity["podAffinity"] == {"x": 1}
    term = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert [f["values"] for f in term["preference"]["matchFields"]] == [["bad-1"], ["bad-2"]]


SPREAD = [
    {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"},
    {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"},
    {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Ignore"},
]


def test_a_node_that_takes_no_pods_does_not_count_for_a_hard_spread() -> None:
    """Else a node that is NotReady, and empty now, would be the one place where the spread lets a replacement go."""
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["topologySpreadConstraints"] = copy.deepcopy(SPREAD)
    job = two_listed(template=template)
    spread = worker_pod(job, 5, HERE)["spec"]["topologySpreadConstraints"]
    assert spread == [{**SPREAD[0], "nodeTaintsPolicy": "Honor"}, {**SPREAD[1], "nodeTaintsPolicy": "Honor"}, SPREAD[2]]
    assert job.spec.template["spec"]["topologySpreadConstraints"] == SPREAD


def test_what_is_wished_of_the_spread_does_not_outweigh_a_node_that_is_kept_away_from() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["topologySpreadConstraints"] = copy.deepcopy(SPREAD)
    spread = worker_pod(two_listed(template=template), 5, HERE, avoid_nodes=("bad-1",))["spec"]
    assert [entry["whenUnsatisfiable"] for entry in spread["topologySpreadConstraints"]] == ["DoNotSchedule"] * 2
    template["spec"]["topologySpreadConstraints"] = [SPREAD[1]]
    alone = worker_pod(two_listed(template=template), 5, HERE, avoid_nodes=("bad-1",))["spec"]
    assert "topologySpreadConstraints" not in alone


def test_the_same_input_gives_the_same_pod() -> None:
    assert worker_pod(two_listed(), 5, HERE) == worker_pod(two_listed(), 5, HERE)


def test_service() -> None:
    service = headless_service(make_job())
    assert service["metadata"]["name"] == "digits"
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"trainjob.dev/job": "digits"},
    }
