"""How this machine reaches the bucket of a job on a cluster: the environment by which `open_store` opens it. Pure.

Credentials are this machine's own (environment, profile, ...): nothing reads the Secret that the pods use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainjob_api import contract, defaults

if TYPE_CHECKING:
    from trainjob.launch.cluster.kubernetes import Kubernetes
    from trainjob_api.v1alpha1 import TrainJob

_OURS = (contract.ENV_S3_PATH_STYLE, contract.ENV_S3_CHECKSUM)


def environ(job: TrainJob, own: Mapping[str, str]) -> dict[str, str]:
    """This machine's environment; where it says nothing of endpoint and region, what the job's pods are given."""
    s3, container = job.spec.checkpoint.s3, defaults.trainer_container(job.spec)[1]
    said = {
        str(e.get("name")): str(e["value"])
        for e in container.get("env") or ()
        if isinstance(e, dict) and e.get("value")
    }
    return _filled(own, said, None if s3 is None else s3.endpoint_url, None if s3 is None else s3.region)


def environ_of(backend: Kubernetes, own: Mapping[str, str]) -> dict[str, str]:
    """The same before there is a job: by what the backend gives its pods."""
    return _filled(own, dict(backend.env), backend.s3.get("endpointURL"), backend.s3.get("region"))


def _filled(own: Mapping[str, str], said: dict[str, str], endpoint: str | None, region: str | None) -> dict[str, str]:
    if endpoint:
        said[contract.S3_ENDPOINT_VARIABLES[0]] = endpoint.rstrip("/")
    if region:
        said[contract.S3_REGION_VARIABLES[0]] = region
    found = dict(own)
    for names in (contract.S3_ENDPOINT_VARIABLES, contract.S3_REGION_VARIABLES, *((name,) for name in _OURS)):
        if not any(own.get(name) for name in names):
            value = next((said[name] for name in names if said.get(name)), None)
            found.update({names[0]: value} if value else {})
    return found
