"""The child objects as dicts: the worker pod of a slot, and the headless Service.

Called by `apply.py`. The user's template goes through as it is; what is added is listed here and nowhere else. Reads no
cluster; the same job, slot and installation give the same object.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core import naming
from trainjob_operator.core.model import Installation

WORK_DIR = "/var/lib/trainjob"
"""Where the pod's own volume is mounted in the trainer container."""
WORK_VOLUME = "trainjob-work"

Manifest = dict[str, Any]


def worker_pod(job: TrainJob, slot: int, installation: Installation, avoid_nodes: Sequence[str] = ()) -> Manifest:
    """The pod of a slot that status lists; `avoid_nodes` are kept away from if there is any other node."""
    template = copy.deepcopy(job.spec.template)
    metadata = template.get("metadata") or {}
    spec: Manifest = template.get("spec") or {}
    spec |= {
        "restartPolicy": "Never",
        "hostname": naming.pod_name(job.metadata.name, slot),
        "subdomain": naming.service_name(job.metadata.name),
    }
    _train(spec, job, slot, installation)
    if avoid_nodes:
        _keep_away(spec, avoid_nodes)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": naming.pod_name(job.metadata.name, slot),
            "namespace": job.metadata.namespace,
            "labels": {**(metadata.get("labels") or {}), **naming.pod_labels(job, slot)},
            "ownerReferences": [naming.owner_reference(job)],
        },
        "spec": spec,
    }


def headless_service(job: TrainJob) -> Manifest:
    """Gives each pod a name under the job's; before they are ready too, since ranks find each other while they start."""
    labels = {contract.LABEL_JOB: job.metadata.name, contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": naming.service_name(job.metadata.name),
            "namespace": job.metadata.namespace,
            "labels": labels,
            "ownerReferences": [naming.owner_reference(job)],
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {contract.LABEL_JOB: job.metadata.name}},
    }


def _train(spec: Manifest, job: TrainJob, slot: int, installation: Installation) -> None:
    """Turn the template's trainer container into a worker, in place."""
    at, container = defaults.trainer_container(job.spec)
    trainer = copy.deepcopy(container)
    reader = reader_env(job, slot, installation)
    if not defaults.uses_agent(job.spec):
        trainer["env"] = _merge(trainer.get("env"), kept=reader, ours=_identity(job, slot))
    else:
        trainer["env"] = _merge(trainer.get("env"), kept=reader, ours=_identity(job, slot) + _agent_env(job, installation))
        trainer["command"] = [*installation.agent_command, "--", *defaults.command_of(container)]
        trainer.pop("args", None)
        staging = job.spec.checkpoint.staging
        volume = {"medium": staging.medium or None, "sizeLimit": staging.size_limit}
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": WORK_VOLUME, "emptyDir": {k: v for k, v in volume.items() if v}}]
        trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), {"name": WORK_VOLUME, "mountPath": WORK_DIR}]
    spec["containers"] = [trainer if i == at else other for i, other in enumerate(spec.get("containers") or [{}])]


def reader_env(job: TrainJob, slot: int, installation: Installation) -> list[Manifest]:
    """MASTER_ADDR, RANK and so on, as a reader of the pod expects them; in plain mode they are what counts.

    With the agent a rank gets its own environment from it, since its index may change while the pod lives.
    """
    status = job.status
    plain = not defaults.uses_agent(job.spec)
    listed = naming.parse_slots(status.attempt.members if plain and status.attempt else status.slots)
    index = listed.index(slot) if slot in listed else 0
    workers = len(listed) or job.spec.workers
    processes = 1 if plain else defaults.processes_per_worker(job.spec)
    leader = naming.pod_name(job.metadata.name, listed[0] if listed else slot)
    address = "127.0.0.1" if installation.any_master_port else f"{leader}.{naming.service_name(job.metadata.name)}"
    number = status.attempt.number if status.attempt else 0
    port = str(job.spec.rendezvous.port + number % contract.PORT_SPREAD)
    values = {
        contract.ENV_MASTER_ADDR: address,
        contract.ENV_MASTER_PORT: port,
        contract.ENV_RANK: str(index * processes),
        contract.ENV_WORLD_SIZE: str(workers * processes),
    }
    if plain:
        values |= {
            contract.ENV_NODE_RANK: str(index),
            contract.ENV_LOCAL_RANK: "0",
            contract.ENV_LOCAL_WORLD_SIZE: "1",
            contract.ENV_ATTEMPT: str(number),
            "PET_NNODES": str(workers),
            "PET_NPROC_PER_NODE": str(_launcher_processes(job)),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
        }
    return [{"name": name, "value": value} for name, value in values.items()]


def _launcher_processes(job: TrainJob) -> int:
    """What torchrun in a plain pod starts: what the spec says, else one process per GPU."""
    if job.spec.processes_per_worker != "auto":
        return job.spec.processes_per_worker
    return max(1, defaults.gpu_limit(defaults.trainer_container(job.spec)[1]))


def _identity(job: TrainJob, slot: int) -> list[Manifest]:
    return [
        {"name": contract.ENV_NAMESPACE, "value": job.metadata.namespace},
        {"name": contract.ENV_JOB, "value": job.metadata.name},
        {"name": contract.ENV_JOB_UID, "value": job.metadata.uid},
        {"name": contract.ENV_SLOT, "value": str(slot)},
        {"name": contract.ENV_BACKEND, "value": defaults.rendezvous_backend(job.spec)},
        {"name": contract.ENV_RENDEZVOUS_TIMEOUT_S, "value": str(job.spec.rendezvous.timeout_seconds)},
        {"name": contract.ENV_POD_NAME, "value": naming.pod_name(job.metadata.name, slot)},
        {"name": contract.ENV_NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


def _agent_env(job: TrainJob, installation: Installation) -> list[Manifest]:
    env: list[Manifest] = [
        {"name": contract.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": contract.ENV_POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": contract.ENV_COORDINATOR, "value": installation.coordinator_url.rstrip("/")},
        {"name": contract.ENV_WORK_DIR, "value": WORK_DIR},
        {"name": contract.ENV_AGENT_SPEC, "value": json.dumps(defaults.agent_spec(job), sort_keys=True)},
    ]
    if installation.any_master_port:
        env.append({"name": contract.ENV_MASTER_PORT_ANY, "value": "1"})
    return env


def _merge(user: list[Manifest] | None, *, kept: list[Manifest], ours: list[Manifest]) -> list[Manifest]:
    """The user's variables in their order (they may refer to each other); `ours` win, of `kept` the user's."""
    names = {entry["name"] for entry in ours}
    own = [entry for entry in user or [] if entry.get("name") not in names]
    set_by_user = {entry.get("name") for entry in own}
    # Ours first: a user's variable may then refer to one of them as $(NAME).
    return ours + [entry for entry in kept if entry["name"] not in set_by_user] + own


def _keep_away(spec: Manifest, nodes: Sequence[str]) -> None:
    """Prefer any other node. Only a preference: on a cluster without another node the job must still run."""
    affinity = spec.setdefault("affinity", {})
    node_affinity = affinity.setdefault("nodeAffinity", {})
    # The API takes one value per field selector; the entries of a term hold together.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    preferred = node_affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
    preferred.append({"weight": 100, "preference": {"matchFields": fields}})
