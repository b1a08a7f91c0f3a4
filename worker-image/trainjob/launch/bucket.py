"""How this machine reaches the bucket of a job on a cluster.

Credentials are this machine's own (environment, profile, ...): nothing reads the Secret that the pods use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainjob_api import contract, defaults

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

_OURS = (contract.ENV_S3_PATH_STYLE, contract.ENV_S3_CHECKSUM)


def environ(job: TrainJob, own: Mapping[str, str]) -> dict[str, str]:
    """This machine's environment; where it says nothing of endpoint and region, what the job's pods are given."""
    s3, container = job.spec.checkpoint.s3, defaults.trainer_container(job.spec)[1]
    said = {str(e.get("name")): str(e["value"]) for e in container.get("env") or () if isinstance(e, dict) and e.get("value")}
    if s3 is not None and s3.endpoint_url:
        said[contract.S3_ENDPOINT_VARIABLES[0]] = s3.endpoint_url.rstrip("/")
    if s3 is not None and s3.region:
        said[contract.S3_REGION_VARIABLES[0]] = s3.region
    found = dict(own)
    for names in (contract.S3_ENDPOINT_VARIABLES, contract.S3_REGION_VARIABLES, *((name,) for name in _OURS)):
        if not any(own.get(name) for name in names):
            value = next((said[name] for name in names if said.get(name)), None)
            found.update({names[0]: value} if value else {})
    return found


@contextmanager
def settings_of(job: TrainJob) -> Iterator[None]:
    """While this holds, stores are opened by that environment; the process is the user's own, so that it is put back."""
    before = dict(os.environ)
    added = {name: value for name, value in environ(job, before).items() if before.get(name) != value}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
