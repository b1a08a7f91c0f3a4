"""Where checkpoints may go and come from: paths, s3://, and how a store is reached.

Called by `validation.py`; the CRD's rules in `cel.py` say the same. Looks at texts alone, never at a file system or a
store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainjob_api import shape
from trainjob_api.problems import Problem
from trainjob_api.v1alpha1 import S3, CheckpointSpec

S3_URI = "^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$"
"""What the CRD's rules match too."""
ENDPOINT = "^https?://[^/?#@\\s]+/?$"
SECRET = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
REGION = "^[a-z0-9][-a-z0-9]*$"
_FIELD = "spec.checkpoint"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FOLDER = "an absolute path on a volume that all workers mount, for example /checkpoints, or s3://bucket/folder"
_CHECKPOINT = (
    "auto, none, or the absolute path of a checkpoint, for example "
    "/checkpoints/team/job/checkpoints/1-2-14, or its s3:// URI"
)


def is_s3(place: str | None) -> bool:
    """Whether a storage or a resumeFrom is in a bucket."""
    return place is not None and place.startswith("s3://")


def storage_problems(checkpoint: CheckpointSpec) -> Iterator[Problem]:
    """What cannot work of `storage`, `resumeFrom` and `s3`."""
    if checkpoint.storage is not None:
        yield from _place_problems(f"{_FIELD}.storage", checkpoint.storage, _FOLDER)
    if checkpoint.resume_from not in ("auto", "none"):
        near = shape.nearest(checkpoint.resume_from, ("auto", "none"))
        yield from _place_problems(
            f"{_FIELD}.resumeFrom", checkpoint.resume_from, _CHECKPOINT + (f"; did you mean {near}?" if near else "")
        )
    if checkpoint.s3 is not None:
        if not is_s3(checkpoint.storage) and not is_s3(checkpoint.resume_from):
            yield Problem(
                f"{_FIELD}.s3",
                checkpoint.s3.to_json(),
                "must be left out unless storage or resumeFrom is at s3://bucket/folder",
            )
        yield from _s3_problems(checkpoint.s3)


def _place_problems(field: str, place: str, wanted: str) -> Iterator[Problem]:
    if is_s3(place):
        yield from _bucket_problems(field, place)
    elif _URI.match(place):
        yield Problem(
            field,
            place,
            f"must be {wanted}; this version keeps checkpoints on mounted paths and at s3://, not at "
            f"{place.split('://')[0]}://",
        )
    elif not place.startswith("/"):
        yield Problem(field, place, f"must be {wanted}")
    elif not place.isprintable() or ".." in place.split("/") or not place.strip("/. "):
        yield Problem(field, place, f"must be {wanted}; a folder below /, without `..` and control characters")


def _bucket_problems(field: str, place: str) -> Iterator[Problem]:
    parts = place[len("s3://") :].rstrip("/").split("/")
    if not re.match(S3_URI, place):
        yield Problem(
            field,
            place,
            f"must be s3://bucket/folder; {parts[0]!r} is no bucket's name (3 to 63 lower-case letters, digits, dots "
            "and dashes)",
        )
    elif not place.isprintable() or any(part in ("", ".", "..") for part in parts):
        yield Problem(field, place, "must be s3://bucket/folder without empty parts, `.`, `..` and control characters")


def _s3_problems(s3: S3) -> Iterator[Problem]:
    field = f"{_FIELD}.s3"
    if s3.endpoint_url is not None and not re.match(ENDPOINT, s3.endpoint_url):
        yield Problem(
            f"{field}.endpointURL",
            s3.endpoint_url,
            "must be http:// or https:// with host and port and nothing behind them: https://minio.storage:9000",
        )
    if s3.region is not None and not re.match(REGION, s3.region):
        yield Problem(f"{field}.region", s3.region, "must be the name of a region, for example eu-central-1")
    if s3.credentials_secret is not None and not re.match(SECRET, s3.credentials_secret):
        yield Problem(
            f"{field}.credentialsSecret", s3.credentials_secret, "must be the name of a Secret in the job's namespace"
        )
    if s3.ca_config_map is not None and not re.match(SECRET, s3.ca_config_map):
        yield Problem(
            f"{field}.caConfigMap", s3.ca_config_map, "must be the name of a ConfigMap in the job's namespace"
        )
