"""Command-line options put over a TrainJob document, and what validation says of it in the words of the command line;
pure.

`run` and `submit` use it for scripts and manifests alike, so that an option means the same in all of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainjob.cli.argument_types import Range
from trainjob.cli.errors import CommandError
from trainjob.launch.handover import carry
from trainjob.launch.job import GPU_RESOURCE
from trainjob_api import contract
from trainjob_api.problems import Problem
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import InvalidTrainJob, parse_trainjob

Document = dict[str, Any]
_ELASTIC = "spec.elastic"
_ALLOWED = f"{_ELASTIC}.allowedSizes"
_ITEM = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was given on the command line; None: not given, the document's own value or the default stays."""

    name: str | None = None
    workers: int | None = None
    """A `Range`: an elastic job."""
    processes_per_worker: int | None = None
    storage: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_secret: str | None = None
    s3_ca_config_map: str | None = None
    keep: int | None = None
    strict: bool | None = None
    on_upload_failure: str | None = None
    fresh: bool = False
    resume_from: str | None = None
    gpus: int | None = None
    max_failures: int | None = None
    hang: str | None = None
    hang_after: int | None = None
    prefork: str | None = None
    preload: Sequence[str] | None = None
    spare_workers: int | None = None
    track: Sequence[str] = ()
    env: Sequence[tuple[str, str]] = ()


class Given(NamedTuple):
    """An option that was given, and what it says."""

    flag: str
    value: object


def overlay(document: Document, options: Options) -> Document:
    """A copy of the document with the options in it; parts of a wrong type are left to validation."""
    result = copy.deepcopy(document)
    for field, given in _given(options).items():
        _put(result, field, given.value)
    if isinstance(options.workers, Range):
        _narrow(result, options.workers)
    for name, value in options.env:
        _set_env(result, name, value)
    if options.gpus is not None:
        _set_gpus(result, options.gpus)
    return result


def parse(document: Document, options: Options, *, command: str, file: str | None) -> TrainJob:
    """The TrainJob of a document with the options in it (`file`: of the manifest it came from). Raises CommandError:
    what an option brought is named by it.
    """
    try:
        return parse_trainjob(document)
    except InvalidTrainJob as error:
        given = _given(options)
        flags = [_flags(problem, given) for problem in error.problems]
        problems = [_with_way_out(problem, document, options) for problem in error.problems]
        named = [
            replace(problem, field=f"{', '.join(of)} ({problem.field})") if of else problem
            for problem, of in zip(problems, flags, strict=True)
        ]
        usage = file is None or all(flags)
        raise CommandError(
            str(InvalidTrainJob(named, error.name)),
            next_step=f"`tj {command} --help` shows the options"
            if usage
            else f"`tj validate -f {file}` checks it again",
            code=contract.CLI_USAGE if usage else contract.CLI_ERROR,
        ) from None


def _given(options: Options) -> Mapping[str, Given]:
    """The options that were given, by the field that each of them sets."""
    checkpoint = "spec.checkpoint"
    size = options.workers
    every = {
        "metadata.name": Given("--name", options.name),
        "spec.workers": Given("--workers", None if size is None else int(size)),
        f"{_ELASTIC}.minWorkers": Given("--workers", size.least if isinstance(size, Range) else None),
        f"{_ELASTIC}.maxWorkers": Given("--workers", int(size) if isinstance(size, Range) else None),
        "spec.processesPerWorker": Given("--processes-per-worker", options.processes_per_worker),
        f"{checkpoint}.storage": Given("--storage", options.storage),
        f"{checkpoint}.s3.endpointURL": Given("--s3-endpoint", options.s3_endpoint),
        f"{checkpoint}.s3.region": Given("--s3-region", options.s3_region),
        f"{checkpoint}.s3.credentialsSecret": Given("--s3-secret", options.s3_secret),
        f"{checkpoint}.s3.caConfigMap": Given("--s3-ca-config-map", options.s3_ca_config_map),
        f"{checkpoint}.keep": Given("--keep", options.keep),
        f"{checkpoint}.strict": Given("--strict", options.strict),
        f"{checkpoint}.onUploadFailure": Given("--on-upload-failure", options.on_upload_failure),
        f"{checkpoint}.resumeFrom": Given("--fresh", "none")
        if options.fresh
        else Given("--resume-from", options.resume_from),
        "spec.failurePolicy.maxFailures": Given("--max-failures", options.max_failures),
        "spec.hang.action": Given("--hang", options.hang),
        "spec.hang.afterSeconds": Given("--hang-after", options.hang_after),
        "spec.runtime.prefork": Given("--prefork", options.prefork),
        "spec.runtime.preload": Given("--preload", None if options.preload is None else list(options.preload)),
        "spec.runtime.spareWorkers": Given("--spare-workers", options.spare_workers),
        "spec.tracking": Given("--track", list(options.track) or None),
    }
    return {field: given for field, given in every.items() if given.value is not None}


def _flags(problem: Problem, given: Mapping[str, Given]) -> list[str]:
    """The options that brought what a problem is about: the one for its field, or those that made all of its map."""
    of_list = _ITEM.sub("", problem.field)
    if of_list in given:
        return [given[of_list].flag]
    if problem.field.startswith(f"{_ALLOWED}[") and f"{_ELASTIC}.minWorkers" in given:
        return [given[f"{_ELASTIC}.minWorkers"].flag]
    parts = problem.value if isinstance(problem.value, dict) else {}
    below = [given.get(f"{problem.field}.{part}") for part in parts]
    return [each.flag for each in below if each is not None] if all(below) else []


def _with_way_out(problem: Problem, document: Document, options: Options) -> Problem:
    """One number of workers that a manifest's elastic sizes do not have: the range that moves them."""
    given = options.workers
    if problem.field != "spec.workers" or given is None or isinstance(given, Range):
        return problem
    elastic = document["spec"].get("elastic")
    least, most = (elastic.get("minWorkers"), elastic.get("maxWorkers")) if isinstance(elastic, dict) else (None, None)
    if not isinstance(least, int) or not isinstance(most, int) or least <= given <= most:
        return problem
    moved = f"--workers {min(given, least)}-{max(given, most)} moves the bounds"
    return replace(problem, message=f"{problem.message}; {moved}")


def _narrow(document: Document, size: Range) -> None:
    """Of a manifest's allowed sizes those within the range, if there are any; the largest is the wished one."""
    spec = document["spec"]
    elastic = spec.get("elastic") if isinstance(spec, dict) else None
    allowed = elastic.get("allowedSizes") if isinstance(elastic, dict) else None
    if not isinstance(allowed, list) or not all(isinstance(each, int) for each in allowed):
        return
    within = [each for each in allowed if size.least <= each <= size]
    if within and isinstance(elastic, dict):
        elastic["allowedSizes"] = within
        spec["workers"] = max(within)


def _put(document: Document, field: str, value: object) -> None:
    *parents, last = field.split(".")
    part: Any = document
    for key in parents:
        if part.get(key) is None:
            part[key] = {}
        part = part[key]
        if not isinstance(part, dict):
            return
    part[last] = value


def _set_gpus(document: Document, count: int) -> None:
    """As its limit; 0 takes it out."""
    try:
        container = carry.trainer(document)
        resources = container.get("resources") or {}
        limits = {name: amount for name, amount in (resources.get("limits") or {}).items() if name != GPU_RESOURCE}
        limits |= {GPU_RESOURCE: str(count)} if count else {}
        container["resources"] = {**resources, "limits": limits}
    except (KeyError, IndexError, TypeError, AttributeError):
        return


def _set_env(document: Document, name: str, value: str) -> None:
    """In the container that trains, replacing an entry of that name."""
    try:
        container = carry.trainer(document)
        kept = [entry for entry in container.get("env") or () if entry.get("name") != name]
        container["env"] = [*kept, {"name": name, "value": value}]
    except (KeyError, IndexError, TypeError, AttributeError):
        return
