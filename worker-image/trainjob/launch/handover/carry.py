"""What travels to a cluster beside a TrainJob, and how its pods come to it; pure.

A ConfigMap that the TrainJob owns holds the packed code (`tj submit SCRIPT`; an init container unpacks it, once per
pod) or the training function (`TorchTrainer`; read where it is mounted). Etcd bounds both.
"""

from __future__ import annotations

import base64
import copy
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

Manifest = dict[str, Any]

LIMIT_BYTES = 700 * 1024
"""Bytes in a ConfigMap; Kubernetes takes a MiB of them, and the store behind it no more than 1.5 MiB with everything
around.
"""

CODE_DIR = "/code"
"""Where the code is unpacked, and the ranks' working directory."""
CODE_VOLUME = "trainjob-code"
ARCHIVE_VOLUME = "trainjob-code-archive"
ARCHIVE_DIR = "/trainjob-code-archive"
ARCHIVE = "code.tar.gz"
PAYLOAD_VOLUME = "trainjob-payload"
PAYLOAD_DIR = "/trainjob-payload"
PAYLOAD = "payload"

_UNPACK = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])"
_PYTHON = 'exec "$$(command -v python3 || command -v python)" -W ignore -c "$0" "$@"'


def config_map(namespace: str, job: str, kind: str, files: Mapping[str, bytes]) -> Manifest:
    """The ConfigMap for a job's files; each call gives a new name, so that a job that is being deleted takes nothing
    of its successor along.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{job}-{kind}-{secrets.token_hex(3)}",
            "namespace": namespace,
            "labels": {contract.LABEL_JOB: job, contract.LABEL_MANAGED_BY: "tj"},
        },
        "immutable": True,
        "binaryData": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }


def with_code(document: Manifest, config_map_name: str) -> Manifest:
    """A copy of the TrainJob whose pods unpack the archive of that ConfigMap and work where it lies."""
    source = {"name": ARCHIVE_VOLUME, "configMap": {"name": config_map_name}}
    return _unpacking(
        document,
        f"{ARCHIVE_DIR}/{ARCHIVE}",
        source,
        {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_DIR, "readOnly": True},
    )


def with_code_at(document: Manifest, path: str, mount: Manifest) -> Manifest:
    """The same, with the archive at a path of a volume that the pods mount already (`mount` is that container's)."""
    return _unpacking(document, path, None, mount)


def with_code_stored(document: Manifest, key: str) -> Manifest:
    """The same, with the archive under that key of the job's folder in a bucket: the agents bring it before the
    ranks start.
    """
    found = copy.deepcopy(document)
    container = trainer(found)
    _append(found["spec"]["template"]["spec"], "volumes", {"name": CODE_VOLUME, "emptyDir": {}})
    _append(container, "volumeMounts", {"name": CODE_VOLUME, "mountPath": CODE_DIR})
    _append(container, "env", {"name": contract.ENV_CODE, "value": key})
    container["workingDir"] = CODE_DIR
    return found


def with_payload(document: Manifest, config_map_name: str) -> Manifest:
    """A copy of the TrainJob whose trainer finds the ConfigMap's files in PAYLOAD_DIR."""
    found = copy.deepcopy(document)
    spec = found["spec"]["template"]["spec"]
    _append(spec, "volumes", {"name": PAYLOAD_VOLUME, "configMap": {"name": config_map_name}})
    _append(trainer(found), "volumeMounts", {"name": PAYLOAD_VOLUME, "mountPath": PAYLOAD_DIR, "readOnly": True})
    return found


def payload_map(job: TrainJob) -> str | None:
    """The ConfigMap whose files a job's trainer finds in PAYLOAD_DIR; None: it has none."""
    for volume in job.spec.template.get("spec", {}).get("volumes") or []:
        if volume.get("name") == PAYLOAD_VOLUME:
            name = (volume.get("configMap") or {}).get("name")
            return None if name is None else str(name)
    return None


def trainer(document: Manifest) -> Manifest:
    """The container that trains."""
    return trainer_of(document["spec"]["template"]["spec"])


def trainer_of(pod: Manifest) -> Manifest:
    """The same of a pod's spec: the one of that name, else the first."""
    containers: list[Manifest] = pod["containers"]
    return next(
        (container for container in containers if container.get("name") == contract.TRAINER_CONTAINER), containers[0]
    )


def _unpacking(document: Manifest, archive: str, source: Manifest | None, mount: Manifest) -> Manifest:
    found = copy.deepcopy(document)
    spec, container = found["spec"]["template"]["spec"], trainer(found)
    code = {"name": CODE_VOLUME, "mountPath": CODE_DIR}
    for volume in ({"name": CODE_VOLUME, "emptyDir": {}}, source):
        if volume is not None:
            _append(spec, "volumes", volume)
    unpack: Manifest = {
        "name": CODE_VOLUME,
        "image": container["image"],
        "command": ["sh", "-c", _PYTHON, _UNPACK, archive, CODE_DIR],
        "volumeMounts": [code, mount],
    }
    for kept in ("imagePullPolicy", "securityContext"):
        if kept in container:
            unpack[kept] = copy.deepcopy(container[kept])
    resources = _without_devices(container.get("resources") or {})
    if resources:
        unpack["resources"] = (
            resources  # the same as the trainer's: a pod needs no more for it, and a Guaranteed one stays so
        )
    _append(spec, "initContainers", unpack)
    _append(container, "volumeMounts", code)
    container["workingDir"] = CODE_DIR
    return found


def _without_devices(resources: Mapping[str, Mapping[str, Any]]) -> Manifest:
    kept = {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in resources.items()
        if isinstance(amounts, Mapping)
    }
    return {kind: amounts for kind, amounts in kept.items() if amounts}


def _append(part: Manifest, key: str, value: Manifest) -> None:
    part[key] = [*(part.get(key) or []), value]
