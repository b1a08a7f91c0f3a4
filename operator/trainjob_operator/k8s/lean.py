"""What the API server sends, without what nobody reads: of a list `managedFields`, about half of each object, of a pod
nearly all of its spec, of a Service what the cluster adds.

Used by `kubeapi.py` before a list is parsed, since parsing holds the event loop, and by `kube.py` for the pods in it,
which as objects take ten times as much memory as their text: the list of a job of thousands must fit beside all else.
The API has no way to leave them out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from trainjob_api import contract
from trainjob_operator.cluster import Manifest

_BEGIN = b'"managedFields":['
_EMPTY = b'"managedFields":[]'


def without_managed_fields(content: bytes) -> bytes:
    """The same JSON document, with each `managedFields` an empty array. One that is written otherwise than API servers
    do it (compactly, as an array without arrays in it) is left as it is.

    A quotation mark within a JSON string has a backslash before it, so what is looked for can begin no place within one
    but where it ends: there no name can follow.
    """
    parts: list[bytes] = []
    done, found = 0, content.find(_BEGIN)
    while found >= 0:
        begun = found + len(_BEGIN)
        end = _end_of_array(content, begun) if content[found - 1 : found] in (b"{", b",") else -1
        if end >= 0:
            parts += (content[done:found], _EMPTY)
            done = begun = end
        found = content.find(_BEGIN, begun)
    return b"".join((*parts, content[done:])) if parts else content


def _end_of_array(content: bytes, begun: int) -> int:
    """The place behind the bracket that closes the array; -1: not told by counting quotation marks alone."""
    end = begun
    while (end := content.find(b"]", end)) >= 0:
        inside = content[begun:end]
        if b"\\\\" in inside:
            return -1
        marks = inside.count(b'"') - inside.count(b'\\"')
        end += 1
        if marks % 2 == 0:
            # Brackets within strings are rare: one that opens here is taken for an array.
            return -1 if b"[" in inside else end
    return -1


_OF_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_LABELS = (contract.LABEL_JOB, contract.LABEL_SLOT, contract.LABEL_MAKE)
_OF_OWNER = ("uid", "controller")
_SERVICE_LABELS = (contract.LABEL_JOB, contract.LABEL_MANAGED_BY)
_OF_SERVICE = ("clusterIP", "selector", "ports", "publishNotReadyAddresses")
_OF_SPEC = ("nodeName", "priority", "terminationGracePeriodSeconds", "readinessGates")
_OF_CONTAINER = ("name", "restartPolicy", "restartPolicyRules")
_OF_ENV = (contract.ENV_COORDINATOR_CA, contract.ENV_COORDINATOR_CA_FILE)
_OF_STATUS = ("phase", "reason", "message")
_CONDITIONS = ("PodScheduled", "Ready", "ContainersReady", "DisruptionTarget")
_OF_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_OF_CONTAINER_STATUS = ("name", "ready", "restartCount", "state", "lastState")


def pod_in_short(pod: Manifest) -> Manifest:
    """The pod with what `manifests.pod_view_of` looks at (a test compares), and with whose it is: a quarter of what it
    takes whole.
    """
    return {
        "metadata": _metadata(pod["metadata"]),
        "spec": _spec(pod.get("spec") or {}),
        "status": _status(pod.get("status") or {}),
    }


def service_in_short(service: Manifest) -> Manifest:
    """The Service with what `loop/services.py` looks at (a test compares)."""
    return {
        "metadata": _of_a_child(service["metadata"], _SERVICE_LABELS),
        "spec": _some(service.get("spec") or {}, _OF_SERVICE),
    }


def _of_a_child(metadata: Manifest, labels: Iterable[str]) -> Manifest:
    short = _some(metadata, _OF_METADATA)
    short["labels"] = {name: _shared(value) for name, value in _some(metadata.get("labels") or {}, labels).items()}
    short["ownerReferences"] = [_some(owner, _OF_OWNER) for owner in metadata.get("ownerReferences") or ()]
    return short


def _metadata(metadata: Manifest) -> Manifest:
    short = _of_a_child(metadata, _LABELS)
    authority = (metadata.get("annotations") or {}).get(contract.ANNOTATION_AUTHORITY)
    return short if authority is None else short | {"annotations": {contract.ANNOTATION_AUTHORITY: _shared(authority)}}


def _spec(spec: Manifest) -> Manifest:
    short = _some(spec, _OF_SPEC)
    short["containers"] = [_container(container) for container in spec.get("containers") or ()]
    return short


def _container(container: Manifest) -> Manifest:
    env = [entry for entry in container.get("env") or () if entry.get("name") in _OF_ENV]
    short = _some(container, _OF_CONTAINER)
    return short | {"env": [{**entry, "value": _shared(entry.get("value"))} for entry in env]} if env else short


def _status(status: Manifest) -> Manifest:
    short = _some(status, _OF_STATUS)
    conditions = (each for each in status.get("conditions") or () if each.get("type") in _CONDITIONS)
    short["conditions"] = [_some(each, _OF_CONDITION) for each in conditions]
    for kind in ("containerStatuses", "initContainerStatuses"):
        if status.get(kind):
            short[kind] = [_some(each, _OF_CONTAINER_STATUS) for each in status[kind]]
    return short


def _some(table: Manifest, names: Iterable[str]) -> Manifest:
    return {name: table[name] for name in names if name in table}


def _shared(text: Any) -> Any:
    """One copy of a text that all pods have."""
    return sys.intern(text) if type(text) is str else text
