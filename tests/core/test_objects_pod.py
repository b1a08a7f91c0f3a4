"""A worker pod as a cluster gets it: the runtime, the token, the volumes, pod security, QoS, dead nodes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.core import T0, make_job
from support.pod_rules import duplicates, effective_requests, qos_class, restricted_problems
from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, TrainJobStatus
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods.container import INSTALL, NOT_RESTARTED, RUNTIME_USER
from trainjob_operator.core.pods.objects import worker_pod

CLUSTER = Installation(
    coordinator_url="https://trainjob-coordinator.trainjob-system.svc:8443",
    agent_command=(contract.RUNTIME_START,),
    runtime_image="trainjob-runtime:1",
    runtime_pull_policy="Always",
    coordinator_ca="-----BEGIN CERTIFICATE-----",
    token_audience=contract.TOKEN_AUDIENCE,
    restart_rules=True,
)
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def make_pod(
    container: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The pod of slot 0 of a job whose trainer and pod spec have these fields too."""
    trainer = {"name": "trainer", "image": "torch", "command": ["python", "train.py"], **(container or {})}
    attempt = Attempt(number=1, state="Running", started_at=T0, members="0,1", workers=2, world_size=2, cause="Started")
    job = make_job(
        TrainJobStatus(slots="0,1", next_slot=2, attempt=attempt),
        template={"spec": {"containers": [trainer], **(spec or {})}},
        **fields,
    )
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels or {}})})
    return worker_pod(job, 0, CLUSTER)


def trainer_of(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")


def env_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in trainer_of(pod)["env"]}


def mounts_of(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def test_s3_is_reached_by_boto3s_own_variables_and_the_secret_is_only_referred_to() -> None:
    wanted = {
        "storage": "s3://bucket/x",
        "s3": {"endpointURL": "https://minio.storage:9000/", "region": "eu-central-1", "credentialsSecret": "s3-keys"},
    }
    pod = make_pod(
        {"env": [{"name": "AWS_REGION", "value": "mine"}, {"name": "AWS_CA_BUNDLE", "value": "/ca.pem"}]},
        checkpoint=wanted,
    )
    entries = {entry["name"]: entry for entry in trainer_of(pod)["env"]}
    assert entries["AWS_ENDPOINT_URL_S3"]["value"] == "https://minio.storage:9000"
    assert entries["AWS_REGION"]["value"] == entries["AWS_DEFAULT_REGION"]["value"] == "eu-central-1"
    assert entries["AWS_CA_BUNDLE"]["value"] == "/ca.pem"
    assert entries["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "s3-keys", "key": "AWS_SECRET_ACCESS_KEY"}
    }
    assert entries["AWS_SESSION_TOKEN"]["valueFrom"] == {
        "secretKeyRef": {"name": "s3-keys", "key": "AWS_SESSION_TOKEN", "optional": True}
    }
    assert duplicates(pod) == []
    assert not any(name.startswith("AWS_") for name in env_of(make_pod(checkpoint={"storage": "s3://bucket/x"})))
    assert not any(
        name.startswith("AWS_") for name in env_of(make_pod(checkpoint=wanted, runtime={"agent": "Disabled"}))
    )


def test_the_stores_authority_is_a_file_in_the_trainer() -> None:
    pod = make_pod(checkpoint={"storage": "s3://bucket/x", "s3": {"caConfigMap": "store-ca"}})
    assert volume(pod, "trainjob-s3-ca") == {
        "name": "trainjob-s3-ca",
        "configMap": {"name": "store-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
    }
    mount = mounts_of(trainer_of(pod))[contract.S3_CA_DIR]
    assert mount == {"name": "trainjob-s3-ca", "mountPath": contract.S3_CA_DIR, "readOnly": True}
    assert env_of(pod)["AWS_CA_BUNDLE"] == f"{contract.S3_CA_DIR}/ca.crt"
    assert (
        volume(make_pod(checkpoint={"storage": "s3://bucket/x", "s3": {"region": "eu-west-1"}}), "trainjob-s3-ca")
        is None
    )


def volume(pod: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((v for v in pod["spec"]["volumes"] if v["name"] == name), None)


# --- The runtime -----------------------------------------------------------------------------------------------------


def test_the_runtime_comes_by_an_init_container_in_front_of_the_templates() -> None:
    pod = make_pod(spec={"initContainers": [{"name": "fetch"}]})
    init, users = pod["spec"]["initContainers"]
    assert users == {"name": "fetch"}
    assert (init["name"], init["image"], init["imagePullPolicy"]) == (
        contract.RUNTIME_CONTAINER,
        "trainjob-runtime:1",
        "Always",
    )
    assert init["command"] == [INSTALL, "/trainjob"]
    assert mounts_of(init) == {"/trainjob": {"name": "trainjob-runtime", "mountPath": "/trainjob"}}
    assert trainer_of(pod)["command"] == ["/trainjob/start", "--", "python", "train.py"]
    assert mounts_of(trainer_of(pod))["/trainjob"]["readOnly"] is True
    assert volume(pod, "trainjob-runtime") == {"name": "trainjob-runtime", "emptyDir": {}}


def test_the_token_and_the_authority() -> None:
    pod = make_pod()
    source = {"serviceAccountToken": {"audience": contract.TOKEN_AUDIENCE, "expirationSeconds": 3600, "path": "token"}}
    field = {"fieldPath": "metadata.annotations['trainjob.dev/coordinator-ca']"}
    authority = {"downwardAPI": {"items": [{"path": "ca.pem", "fieldRef": field}]}}
    assert volume(pod, "trainjob-token") == {"name": "trainjob-token", "projected": {"sources": [source, authority]}}
    mount = mounts_of(trainer_of(pod))[contract.TOKEN_DIR]
    assert mount["readOnly"] is True
    assert env_of(pod)[contract.ENV_TOKEN_FILE] == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert env_of(pod)[contract.ENV_COORDINATOR_CA] == CLUSTER.coordinator_ca
    assert env_of(pod)[contract.ENV_COORDINATOR_CA_FILE] == f"{mount['mountPath']}/ca.pem"
    assert pod["metadata"]["annotations"][contract.ANNOTATION_AUTHORITY] == CLUSTER.coordinator_ca


def test_no_template_says_whom_agents_believe() -> None:
    job = make_job(TrainJobStatus(slots="0"))
    theirs = {"annotations": {contract.ANNOTATION_AUTHORITY: "somebody's", "mine": "kept"}}
    template = {**job.spec.template, "metadata": theirs}
    pod = worker_pod(make_job(TrainJobStatus(slots="0"), template=template), 0, CLUSTER)
    assert pod["metadata"]["annotations"] == {
        contract.ANNOTATION_AUTHORITY: CLUSTER.coordinator_ca,
        "mine": "kept",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, False), ({"automountServiceAccountToken": None}, False), ({"automountServiceAccountToken": True}, True)],
)
def test_workers_hold_no_rights_unless_the_template_says_so(given: dict[str, Any], expected: bool) -> None:
    assert make_pod(spec=given)["spec"]["automountServiceAccountToken"] is expected


def test_an_installation_without_image_and_token_adds_neither() -> None:
    pod = worker_pod(make_job(TrainJobStatus(slots="0")), 0, Installation(coordinator_url="http://127.0.0.1:1"))
    assert "initContainers" not in pod["spec"]
    assert set(mounts_of(trainer_of(pod))) == {contract.WORK_DIR, "/dev/shm"}
    assert not {contract.ENV_TOKEN_FILE, contract.ENV_COORDINATOR_CA} & set(env_of(pod))
    assert "restartPolicyRules" not in trainer_of(pod)


@pytest.mark.parametrize(
    ("container", "spec", "ours"),
    [
        ({}, {}, True),
        (
            {"volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}]},
            {"volumes": [{"name": "mine", "emptyDir": {}}]},
            False,
        ),
        (
            {"volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/x"}]},
            {"volumes": [{"name": "mine", "emptyDir": {}}]},
            True,
        ),
        ({}, {"hostIPC": True}, False),
    ],
)
def test_shared_memory_unless_the_template_sees_to_it(
    container: dict[str, Any], spec: dict[str, Any], ours: bool
) -> None:
    pod = make_pod(container, spec)
    assert volume(pod, "trainjob-shm") == ({"name": "trainjob-shm", "emptyDir": {"medium": "Memory"}} if ours else None)
    assert ("/dev/shm" in mounts_of(trainer_of(pod))) is ours


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_a_killed_agent_is_started_again_in_its_pod_and_its_own_ends_are_ends() -> None:
    trainer = trainer_of(make_pod())
    assert trainer["restartPolicy"] == "Never"
    assert trainer["restartPolicyRules"] == [
        {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": list(NOT_RESTARTED)}}
    ]
    exits = [value for name, value in vars(contract).items() if name.startswith("EXIT_")]
    assert set(exits) <= set(NOT_RESTARTED) and not {1, 137, 139, 143} & set(NOT_RESTARTED)


def test_restart_rules_of_the_template_stay() -> None:
    rules = {
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
    }
    assert rules.items() <= trainer_of(make_pod(rules)).items()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "FallbackToLogsOnError"),
        ({"terminationMessagePolicy": "File"}, "File"),
        ({"terminationMessagePath": "/my/log"}, None),
    ],
)
def test_the_last_lines_become_the_pods_message(given: dict[str, Any], expected: str | None) -> None:
    assert trainer_of(make_pod(given)).get("terminationMessagePolicy") == expected


# --- Nodes and networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["not-ready", "unreachable"]),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], ["not-ready", "unreachable"]),
        (
            [
                {
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            ],
            ["not-ready"],
        ),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], ["unreachable"]),
        (
            [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}],
            ["not-ready", "unreachable"],
        ),
        ([{"operator": "Exists"}], []),
    ],
)
def test_pods_leave_a_dead_node_soon_unless_the_template_says_when(
    given: list[dict[str, Any]], added: list[str]
) -> None:
    tolerations = make_pod(spec={"tolerations": given})["spec"]["tolerations"]
    assert tolerations[: len(given)] == given
    ours = tolerations[len(given) :]
    assert [toleration["key"].rpartition("/")[2] for toleration in ours] == added
    assert all(t["effect"] == "NoExecute" and t["tolerationSeconds"] == 30 for t in ours)


def test_a_pod_on_the_nodes_network_picks_its_port_and_finds_names() -> None:
    pod = make_pod(spec={"hostNetwork": True})
    assert env_of(pod)[contract.ENV_MASTER_PORT_ANY] == "1"
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert make_pod(spec={"hostNetwork": True, "dnsPolicy": "Default"})["spec"]["dnsPolicy"] == "Default"
    assert contract.ENV_MASTER_PORT_ANY not in env_of(make_pod()) and "dnsPolicy" not in make_pod()["spec"]


def test_the_queue_comes_from_the_jobs_labels() -> None:
    labels = make_pod(labels={contract.QUEUE_LABEL: "team-a", "other": "x"})["metadata"]["labels"]
    assert labels[contract.QUEUE_LABEL] == "team-a" and "other" not in labels
    assert contract.QUEUE_LABEL not in make_pod()["metadata"]["labels"]


# --- Plain mode ------------------------------------------------------------------------------------------------------


def test_plain_mode_adds_no_container_no_volume_and_no_command() -> None:
    spec = make_pod(runtime={"agent": "Disabled"})["spec"]
    assert "initContainers" not in spec and "volumes" not in spec
    trainer = spec["containers"][0]
    assert trainer["command"] == ["python", "train.py"]
    assert set(trainer) == {"name", "image", "command", "env", "terminationMessagePolicy"}


# --- Kubernetes' own rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["container", "pod"])
def test_a_restricted_template_gives_a_restricted_pod(at: str) -> None:
    both = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if at == "container":
        pod = make_pod({"securityContext": RESTRICTED})
    else:
        pod = make_pod(
            {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
            {"securityContext": both},
        )
    assert restricted_problems(pod) == []


def test_the_init_container_is_restricted_in_a_template_that_is_not() -> None:
    pod = make_pod(
        spec={"securityContext": {"runAsUser": 0, "runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}}}
    )
    problems = restricted_problems(pod)
    assert problems and all(problem.startswith("trainer:") for problem in problems)
    assert pod["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == RUNTIME_USER
    assert (
        "runAsUser"
        not in make_pod(spec={"securityContext": {"runAsUser": 1000}})["spec"]["initContainers"][0]["securityContext"]
    )


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, "BestEffort"),
        ({"limits": {"cpu": 4, "memory": "8Gi"}}, "Guaranteed"),
        (
            {"limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2}, "requests": {"cpu": 4, "memory": "8Gi"}},
            "Guaranteed",
        ),
        ({"limits": {"memory": "8Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"requests": {"cpu": "2"}}, "Burstable"),
        ({"limits": {"nvidia.com/gpu": 1}}, "BestEffort"),
        ({"requests": None, "limits": {}}, "BestEffort"),
    ],
)
def test_the_pod_keeps_the_templates_qos_class_and_size(resources: dict[str, Any] | None, expected: str) -> None:
    pod = make_pod({"resources": resources} if resources else {})
    alone = copy.deepcopy(pod)
    del alone["spec"]["initContainers"]
    assert qos_class(pod) == qos_class(alone) == expected
    assert effective_requests(pod) == effective_requests(alone)
    assert "nvidia.com/gpu" not in str(pod["spec"]["initContainers"])


# --- The template survives -------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.booleans() | st.integers(0, 9) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc"), inner, max_size=2),
)
FIELDS = st.sampled_from(
    (
        "affinity",
        "priorityClassName",
        "schedulerName",
        "imagePullSecrets",
        "nodeSelector",
        "serviceAccountName",
        "topologySpreadConstraints",
        "overhead",
    )
)
TRAINER_FIELDS = st.sampled_from(
    [
        "image",
        "workingDir",
        "securityContext",
        "ports",
        "envFrom",
        "livenessProbe",
        "lifecycle",
        "imagePullPolicy",
        "volumeDevices",
        "stdin",
        "tty",
    ]
)


@given(
    pod_fields=st.dictionaries(FIELDS, JSON, max_size=4),
    trainer_fields=st.dictionaries(TRAINER_FIELDS, JSON, max_size=4),
    sidecars=st.lists(st.dictionaries(st.text("abc", min_size=1), JSON, max_size=3), max_size=2),
    variables=st.lists(st.sampled_from(["A", "B", "TMPDIR", "OMP_NUM_THREADS"]), unique=True),
    plain=st.booleans(),
)
def test_the_users_fields_survive(
    pod_fields: dict[str, Any],
    trainer_fields: dict[str, Any],
    sidecars: list[dict[str, Any]],
    variables: list[str],
    plain: bool,
) -> None:
    others = [{**fields, "name": f"side-{at}"} for at, fields in enumerate(sidecars)]
    container = {
        **trainer_fields,
        "name": "trainer",
        "command": ["python", "train.py"],
        "env": [{"name": name, "value": "1"} for name in variables],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
        "spec": {
            **pod_fields,
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [{"name": "fetch"}],
            "containers": [container, *others],
        },
    }
    job = make_job(TrainJobStatus(slots="0"), template=template, runtime={"agent": "Disabled" if plain else "auto"})
    before = copy.deepcopy(job.spec.template)
    pod = worker_pod(job, 0, CLUSTER)
    assert job.spec.template == before
    assert pod_fields.items() <= pod["spec"].items()
    assert trainer_fields.items() <= trainer_of(pod).items()
    assert pod["spec"]["containers"][1:] == others
    assert pod["spec"]["initContainers"][-1] == {"name": "fetch"}
    assert pod["spec"]["volumes"][0] == {"name": "data", "emptyDir": {}}
    assert trainer_of(pod)["volumeMounts"][0] == {"name": "data", "mountPath": "/data"}
    assert [entry["name"] for entry in trainer_of(pod)["env"] if entry["name"] in variables] == variables
    assert pod["metadata"]["labels"]["team"] == "vision" and pod["metadata"]["annotations"]["note"] == "x"
    assert duplicates(pod) == []
