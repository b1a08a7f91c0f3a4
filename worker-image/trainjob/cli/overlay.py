"""Command-line options put over a TrainJob document; pure.

`run` uses it for scripts and manifests alike, so that an option means the same in both. Validation comes after.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainjob_api import contract

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was given on the command line; None: not given, the document's own value or the default stays."""

    name: str | None = None
    workers: int | None = None
    processes_per_worker: int | None = None
    storage: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_secret: str | None = None
    keep: int | None = None
    fresh: bool = False
    max_failures: int | None = None
    env: Sequence[tuple[str, str]] = ()


def overlay(document: Document, options: Options) -> Document:
    """A copy of the document with the options in it; parts of a wrong type are left to validation."""
    result = copy.deepcopy(document)
    values: Mapping[tuple[str, ...], object] = {
        ("metadata", "name"): options.name,
        ("spec", "workers"): options.workers,
        ("spec", "processesPerWorker"): options.processes_per_worker,
        ("spec", "checkpoint", "storage"): options.storage,
        ("spec", "checkpoint", "s3", "endpointURL"): options.s3_endpoint,
        ("spec", "checkpoint", "s3", "region"): options.s3_region,
        ("spec", "checkpoint", "s3", "credentialsSecret"): options.s3_secret,
        ("spec", "checkpoint", "keep"): options.keep,
        ("spec", "checkpoint", "resumeFrom"): "none" if options.fresh else None,
        ("spec", "failurePolicy", "maxFailures"): options.max_failures,
    }
    for path, value in values.items():
        if value is not None:
            _put(result, path, value)
    for name, value in options.env:
        _set_env(result, name, value)
    return result


def _put(document: Document, path: tuple[str, ...], value: object) -> None:
    *parents, last = path
    part: Any = document
    for key in parents:
        if part.get(key) is None:
            part[key] = {}
        part = part[key]
        if not isinstance(part, dict):
            return
    part[last] = value


def _set_env(document: Document, name: str, value: str) -> None:
    """In the container that trains, replacing an entry of that name."""
    try:
        containers = document["spec"]["template"]["spec"]["containers"]
        container = next((c for c in containers if c.get("name") == contract.TRAINER_CONTAINER), containers[0])
        entries = container.setdefault("env", [])
        entries[:] = [entry for entry in entries if entry.get("name") != name] + [{"name": name, "value": value}]
    except (KeyError, IndexError, TypeError, AttributeError):
        return
