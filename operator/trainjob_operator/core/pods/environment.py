"""The variables of the trainer container: who the pod is, what its agent acts on, and what a reader of the pod expects
to see.

Called by `container.py`. With the agent a rank gets its own environment from it (the index may change while the pod
lives); in plain mode these variables are what counts.
"""

from __future__ import annotations

import json
from typing import Any

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import S3, TrainJob
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods import naming

Entry = dict[str, Any]


def container_env(user: list[Entry] | None, job: TrainJob, slot: int, installation: Installation) -> list[Entry]:
    """The container's `env`: the user's variables and ours."""
    ours = _identity(job, slot)
    if defaults.uses_agent(job.spec):
        ours += _agent(job, installation)
    return _merge(user, kept=reader_env(job, slot, installation), ours=ours)


def reader_env(job: TrainJob, slot: int, installation: Installation) -> list[Entry]:
    """MASTER_ADDR, RANK and so on; in plain mode also what torchrun reads."""
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
            "PET_RDZV_ENDPOINT": f"{address}:{port}",
        }
    return [{"name": name, "value": value} for name, value in values.items()]


def _launcher_processes(job: TrainJob) -> int:
    """What torchrun in a plain pod starts: what the spec says, else one process per GPU."""
    if job.spec.processes_per_worker != "auto":
        return job.spec.processes_per_worker
    return max(1, defaults.gpu_limit(defaults.trainer_container(job.spec)[1]))


def _identity(job: TrainJob, slot: int) -> list[Entry]:
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


def _agent(job: TrainJob, installation: Installation) -> list[Entry]:
    env: list[Entry] = [
        {"name": contract.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": contract.ENV_POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": contract.ENV_COORDINATOR, "value": installation.coordinator_url.rstrip("/")},
        {"name": contract.ENV_WORK_DIR, "value": contract.WORK_DIR},
        {"name": contract.ENV_AGENT_SPEC, "value": json.dumps(defaults.agent_spec(job), sort_keys=True)},
    ]
    env += _s3(job.spec.checkpoint.s3)
    if installation.coordinator_ca:
        env.append({"name": contract.ENV_COORDINATOR_CA, "value": installation.coordinator_ca})
    if installation.authority_follows:
        env.append({"name": contract.ENV_COORDINATOR_CA_FILE, "value": contract.AUTHORITY_FILE})
    if installation.token_audience:
        env.append({"name": contract.ENV_TOKEN_FILE, "value": contract.TOKEN_FILE})
    if installation.any_master_port or _shares_the_nodes_network(job):
        env.append({"name": contract.ENV_MASTER_PORT_ANY, "value": "1"})
    return env


def _s3(s3: S3 | None) -> list[Entry]:
    """How boto3 reaches the store, in its own words; the ranks see them too."""
    if s3 is None:
        return []
    env: list[Entry] = []
    if s3.endpoint_url:
        env.append({"name": contract.S3_ENDPOINT_VARIABLES[0], "value": s3.endpoint_url.rstrip("/")})
    if s3.region:
        env += [{"name": name, "value": s3.region} for name in contract.S3_REGION_VARIABLES]
    if s3.ca_config_map:
        env.append({"name": "AWS_CA_BUNDLE", "value": contract.S3_CA_FILE})
    if s3.credentials_secret:
        for name in contract.S3_SECRET_KEYS:
            reference: Entry = {"name": s3.credentials_secret, "key": name}
            if name == contract.S3_SECRET_KEYS[-1]:
                reference["optional"] = True
            env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return env


def _shares_the_nodes_network(job: TrainJob) -> bool:
    """Then other pods' ports are in the way of a computed one."""
    return bool((job.spec.template.get("spec") or {}).get("hostNetwork"))


def _merge(user: list[Entry] | None, *, kept: list[Entry], ours: list[Entry]) -> list[Entry]:
    """The user's variables in their order (they may refer to each other); `ours` win, of `kept` the user's."""
    names = {entry["name"] for entry in ours}
    own = [entry for entry in user or [] if entry.get("name") not in names]
    set_by_user = {entry.get("name") for entry in own}
    # Ours first: a user's variable may then refer to one of them as $(NAME).
    return ours + [entry for entry in kept if entry["name"] not in set_by_user] + own
