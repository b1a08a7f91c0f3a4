"""Kubernetes' own rules about a pod manifest, as functions: the restricted pod security standard, the QoS class,
duplicate names.

Written from Kubernetes' documentation, for tests of what the operator makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

Manifest = dict[str, Any]

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_UNITS = {"m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "": 1}


def restricted_problems(pod: Manifest) -> list[str]:
    """What the restricted pod security standard has against a pod; empty: it is admitted."""
    spec = pod["spec"]
    security = spec.get("securityContext") or {}
    found = [f"{name}: true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for volume in spec.get("volumes") or []:
        found += [f"volume {volume['name']}: {kind}" for kind in volume if kind != "name" and kind not in _VOLUMES]
    for container in _containers(spec):
        found += [f"{container['name']}: {problem}" for problem in _container_problems(container, security)]
    return found


def _container_problems(container: Manifest, pod: Manifest) -> Iterator[str]:
    own = container.get("securityContext") or {}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield "does not drop ALL capabilities"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield "runs as user 0"
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield "seccompProfile is not RuntimeDefault"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield "hostPort"


def qos_class(pod: Manifest) -> str:
    """Guaranteed, Burstable or BestEffort, from CPU and memory of all containers, init containers included."""
    pairs = [_amounts(container) for container in _containers(pod["spec"])]
    if all(not requests and not limits for requests, limits in pairs):
        return "BestEffort"
    guaranteed = all(set(limits) == {"cpu", "memory"} and requests == limits for requests, limits in pairs)
    return "Guaranteed" if guaranteed else "Burstable"


def effective_requests(pod: Manifest) -> dict[str, Decimal]:
    """CPU and memory that the scheduler looks for: the sum of the containers, or the largest init container."""
    spec, total = pod["spec"], dict[str, Decimal]()
    for name in ("cpu", "memory"):
        together = sum((_amounts(c)[0].get(name, Decimal(0)) for c in spec["containers"]), Decimal(0))
        total[name] = max([together, *(_amounts(c)[0].get(name, Decimal(0)) for c in spec.get("initContainers") or [])])
    return total


def duplicates(pod: Manifest) -> list[str]:
    """Names that stand twice where the API server wants each once, and mounts of volumes that are not there."""
    spec = pod["spec"]
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    found = [f"volume {name}" for name, count in Counter(volumes).items() if count > 1]
    found += [
        f"container {name}"
        for name, count in Counter(container["name"] for container in _containers(spec)).items()
        if count > 1
    ]
    for container in _containers(spec):
        mounts = container.get("volumeMounts") or []
        found += [
            f"{container['name']}: mount {path}"
            for path, count in Counter(mount["mountPath"] for mount in mounts).items()
            if count > 1
        ]
        found += [f"{container['name']}: no volume {mount['name']}" for mount in mounts if mount["name"] not in volumes]
        found += [
            f"{container['name']}: variable {name}"
            for name, count in Counter(entry["name"] for entry in container.get("env") or []).items()
            if count > 1
        ]
    return found


def _containers(spec: Manifest) -> list[Manifest]:
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def _amounts(container: Manifest) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Requests and limits as the API server completes them: a limit without a request is one."""
    resources = container.get("resources") or {}
    limits = {
        name: _number(value) for name, value in (resources.get("limits") or {}).items() if name in ("cpu", "memory")
    }
    requests = {
        name: _number(value) for name, value in (resources.get("requests") or {}).items() if name in ("cpu", "memory")
    }
    return {**limits, **requests}, limits


def _number(quantity: Any) -> Decimal:
    text = str(quantity)
    digits = text.rstrip("kmMGi")
    return Decimal(digits) * _UNITS[text[len(digits) :]]
