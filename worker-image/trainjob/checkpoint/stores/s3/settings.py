"""How an S3 store is reached: bucket and prefix of a URI, and what the environment says about the rest.

Read by `checkpoint.opening.open_store` and `requests`. Credentials are boto3's own affair: environment, profile, web
identity, container and instance credentials, in its order, refreshed while the job runs. Imports nothing outside the
standard library.
"""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import digest
from trainjob_api import contract

SCHEME = "s3://"
SLOWEST = 8 << 10
"""Bytes a second: a stream or a request below this counts as standing still."""
_BUCKET = re.compile(r"(?!.*\.\.)(?![0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


def stands_still(seconds: float, moved: int, timeout_s: float) -> bool:
    """Whether `moved` bytes in that time are too few."""
    return seconds > timeout_s + moved / SLOWEST


class Settings(NamedTuple):
    """Everything but the credentials."""

    endpoint: Optional[str]
    """None: AWS itself."""
    region: Optional[str]
    path_style: bool
    """The bucket stands in the path of a request, not in its host name."""
    algorithm: str
    retry_s: float
    """How long a request is tried again."""
    timeout_s: float
    """How long a stream may stand still."""


def parse(uri: str) -> Tuple[str, str]:
    """(bucket, prefix without slashes around it) of s3://bucket/prefix. Raises StoreError."""
    bucket, _, prefix = uri[len(SCHEME) :].partition("/")
    if not uri.lower().startswith(SCHEME) or not _BUCKET.fullmatch(bucket):
        raise StoreError(
            errors.INVALID,
            f"storage {uri!r} names no bucket: {bucket!r} is not 3 to 63 lower-case letters, digits, dots and "
            "dashes. Give s3://bucket/folder.",
        )
    prefix = prefix.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise StoreError(
            errors.INVALID, f"storage {uri!r} has an empty part, `.` or `..` in it. Give s3://bucket/folder/folder."
        )
    return bucket, prefix


def read(environ: Optional[Mapping[str, str]] = None) -> Settings:
    """What the environment says. Raises StoreError for values that make no sense."""
    env = os.environ if environ is None else environ
    endpoint = _first(env, contract.S3_ENDPOINT_VARIABLES)
    style = env.get(contract.ENV_S3_PATH_STYLE, "")
    if style not in ("", "0", "1"):
        raise StoreError(
            errors.INVALID,
            f"{contract.ENV_S3_PATH_STYLE}={style!r} is neither 1 (the bucket stands in the path) nor 0 (in the host "
            "name)",
        )
    algorithm = env.get(contract.ENV_S3_CHECKSUM) or digest.best()
    if algorithm not in digest.ALGORITHMS:
        raise StoreError(
            errors.INVALID, f"{contract.ENV_S3_CHECKSUM}={algorithm!r} is not one of {', '.join(digest.ALGORITHMS)}"
        )
    return Settings(
        endpoint=endpoint,
        region=_first(env, contract.S3_REGION_VARIABLES),
        path_style=style == "1" if style else endpoint is not None,
        algorithm=algorithm,
        retry_s=_seconds(env, contract.ENV_S3_RETRY_S, contract.S3_RETRY_S),
        timeout_s=_seconds(env, contract.ENV_S3_TIMEOUT_S, contract.S3_TIMEOUT_S),
    )


def _first(env: Mapping[str, str], names: Sequence[str]) -> Optional[str]:
    return next((env[name] for name in names if env.get(name)), None)


def _seconds(env: Mapping[str, str], name: str, absent: float) -> float:
    value = env.get(name, "")
    try:
        seconds = float(value or absent)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StoreError(errors.INVALID, f"{name}={value!r} is no number of seconds above 0")
    return seconds
