"""Volumes that the operator adds to a pod with an agent, and where its containers see them.

Called by `objects.py` and `container.py`. All are emptyDirs or projected, which the restricted pod security standard
allows; a kubelet makes emptyDirs writable for every user, so that nothing here depends on the user that the template
picks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob_api import contract
from trainjob_api.v1alpha1 import S3, CheckpointSpec
from trainjob_operator.core.model import Installation

SHM_DIR = "/dev/shm"
TOKEN_SECONDS = 3600
"""Lifetime of the agent's token; the kubelet replaces it at four fifths of that."""

Manifest = dict[str, Any]


def added_volumes(
    spec: Mapping[str, Any], trainer: Mapping[str, Any], checkpoint: CheckpointSpec, installation: Installation
) -> list[Manifest]:
    """What goes behind the template's own volumes."""
    staging = checkpoint.staging
    work = {"medium": staging.medium or None, "sizeLimit": staging.size_limit}
    volumes: list[Manifest] = [
        {"name": contract.WORK_VOLUME, "emptyDir": {key: value for key, value in work.items() if value}}
    ]
    if installation.runtime_image:
        volumes.append({"name": contract.RUNTIME_VOLUME, "emptyDir": {}})
    if installation.token_audience:
        volumes.append(_token(installation.token_audience, installation.authority_follows))
    if checkpoint.s3 is not None and checkpoint.s3.ca_config_map:
        source = {
            "name": checkpoint.s3.ca_config_map,
            "items": [{"key": contract.S3_CA_KEY, "path": contract.S3_CA_KEY}],
        }
        volumes.append({"name": contract.S3_CA_VOLUME, "configMap": source})
    if _needs_shm(spec, trainer):
        # Without a size limit the kubelet allows as much as the pod's memory limit; what is written counts as the
        # container's memory.
        volumes.append({"name": contract.SHM_VOLUME, "emptyDir": {"medium": "Memory"}})
    return volumes


def added_mounts(
    spec: Mapping[str, Any], trainer: Mapping[str, Any], s3: S3 | None, installation: Installation
) -> list[Manifest]:
    """What goes behind the trainer's own mounts."""
    mounts: list[Manifest] = [{"name": contract.WORK_VOLUME, "mountPath": contract.WORK_DIR}]
    if installation.runtime_image:
        mounts.append({"name": contract.RUNTIME_VOLUME, "mountPath": contract.RUNTIME_DIR, "readOnly": True})
    if installation.token_audience:
        mounts.append({"name": contract.TOKEN_VOLUME, "mountPath": contract.TOKEN_DIR, "readOnly": True})
    if s3 is not None and s3.ca_config_map:
        mounts.append({"name": contract.S3_CA_VOLUME, "mountPath": contract.S3_CA_DIR, "readOnly": True})
    if _needs_shm(spec, trainer):
        mounts.append({"name": contract.SHM_VOLUME, "mountPath": SHM_DIR})
    return mounts


def _token(audience: str, with_authority: bool) -> Manifest:
    """And the CA, as the pod's annotation says it."""
    source: Manifest = {
        "serviceAccountToken": {
            "audience": audience,
            "expirationSeconds": TOKEN_SECONDS,
            "path": contract.TOKEN_FILE.rsplit("/", 1)[-1],
        }
    }
    authority: Manifest = {
        "path": contract.AUTHORITY_FILE.rsplit("/", 1)[-1],
        "fieldRef": {"fieldPath": f"metadata.annotations['{contract.ANNOTATION_AUTHORITY}']"},
    }
    sources = [source, {"downwardAPI": {"items": [authority]}}] if with_authority else [source]
    return {"name": contract.TOKEN_VOLUME, "projected": {"sources": sources}}


def _needs_shm(spec: Mapping[str, Any], trainer: Mapping[str, Any]) -> bool:
    """A container has 64 MiB there by itself, too little for loader processes; the template's own mount, or the
    node's, stays.
    """
    paths = {str(mount.get("mountPath")).rstrip("/") for mount in trainer.get("volumeMounts") or []}
    return SHM_DIR not in paths and not spec.get("hostIPC")
