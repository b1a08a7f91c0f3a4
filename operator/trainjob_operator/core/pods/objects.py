"""The child objects as dicts: the worker pod of a slot, and the headless Service.

Called by `apply.py`. The user's template goes through as it is; what is added to the pod is listed here, to its
containers in `container.py` (variables: `environment.py`, volumes: `volumes.py`), and nowhere else. Reads no cluster;
the same job, slot and installation give the same object.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods import container, naming, volumes

DEAD_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEAD_NODE_SECONDS = 30
"""How long a pod stays on a node that is gone; Kubernetes' own 300 s would keep all other workers waiting."""

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
    if spec.get("automountServiceAccountToken") is None:
        # Workers hold no rights in the cluster, unless the template asks for them.
        spec["automountServiceAccountToken"] = False
    if spec.get("hostNetwork") and not spec.get("dnsPolicy"):
        # Else such a pod would not find its peers and the coordinator by their names.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    spec["tolerations"] = [*(spec.get("tolerations") or []), *_for_dead_nodes(spec.get("tolerations") or [])]
    _train(spec, job, slot, installation)
    _spread(spec, around=bool(avoid_nodes))
    if avoid_nodes:
        _keep_away(spec, avoid_nodes)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": naming.pod_name(job.metadata.name, slot),
            "namespace": job.metadata.namespace,
            "labels": {**_queue(job), **(metadata.get("labels") or {}), **naming.pod_labels(job, slot)},
            "ownerReferences": [naming.owner_reference(job)],
            **_annotations(metadata, job, installation),
        },
        "spec": spec,
    }


def headless_service(job: TrainJob) -> Manifest:
    """Gives each pod a name under the job's; before they are ready too, since ranks find each other while they
    start.
    """
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
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {contract.LABEL_JOB: job.metadata.name},
        },
    }


def _train(spec: Manifest, job: TrainJob, slot: int, installation: Installation) -> None:
    """Turn the template's trainer container into a worker, in place; add what brings the agent."""
    at, original = defaults.trainer_container(job.spec)
    trainer = copy.deepcopy(original)
    if defaults.uses_agent(job.spec):
        spec["volumes"] = [
            *(spec.get("volumes") or []),
            *volumes.added_volumes(spec, trainer, job.spec.checkpoint, installation),
        ]
        if installation.runtime_image:
            # The first one: sidecars that start among the template's init containers need not wait in front of it.
            spec["initContainers"] = [
                container.runtime_container(spec, trainer, installation),
                *(spec.get("initContainers") or []),
            ]
    made = container.trainer(spec, trainer, job, slot, installation)
    spec["containers"] = [made if i == at else other for i, other in enumerate(spec.get("containers") or [{}])]


def _annotations(metadata: Manifest, job: TrainJob, installation: Installation) -> Manifest:
    """The template's, and the CA that the agent is to believe."""
    given = metadata.get("annotations") or {}
    if defaults.uses_agent(job.spec) and installation.authority_follows:
        given = {**given, contract.ANNOTATION_AUTHORITY: installation.coordinator_ca}
    return {"annotations": given} if given else {}


def _queue(job: TrainJob) -> dict[str, str]:
    """The queue that the job is in, if its labels name one."""
    name = job.metadata.labels.get(contract.QUEUE_LABEL)
    return {contract.QUEUE_LABEL: name} if name else {}


def _for_dead_nodes(tolerations: Sequence[Manifest]) -> list[Manifest]:
    """Tolerations of a dead node for a short time, where the template says nothing of such nodes."""
    return [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEAD_NODE_SECONDS}
        for taint in DEAD_NODE_TAINTS
        if not any(
            given.get("key") in (None, "", taint) and given.get("effect") in (None, "", "NoExecute")
            for given in tolerations
        )
    ]


def _spread(spec: Manifest, *, around: bool) -> None:
    """The template's spread over nodes, for a cluster that loses some.

    A node that takes no pods (NotReady, cordoned) does not count: empty as it is, it would be the one place where a
    hard constraint lets a replacement go. Where a node is kept away from (`around`), what the template merely wishes of
    the spread goes: a scheduler weighs both wishes alike, and the suspected node is the emptiest.
    """
    given = spec.get("topologySpreadConstraints")
    if not isinstance(given, list) or not all(isinstance(entry, dict) and "topologyKey" in entry for entry in given):
        return
    kept = [entry for entry in given if not (around and entry.get("whenUnsatisfiable") == "ScheduleAnyway")]
    spec["topologySpreadConstraints"] = [{"nodeTaintsPolicy": "Honor", **entry} for entry in kept]
    if given and not kept:
        del spec["topologySpreadConstraints"]


def _keep_away(spec: Manifest, nodes: Sequence[str]) -> None:
    """Prefer any other node. Only a preference: on a cluster without another node the job must still run."""
    affinity = spec["affinity"] = spec.get("affinity") or {}
    node_affinity = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    # The API takes one value per field selector; the entries of a term hold together.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    given = node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
        *given,
        {"weight": 100, "preference": {"matchFields": fields}},
    ]
