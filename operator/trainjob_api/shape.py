"""Checks a document against the models and words what does not fit: types, ranges, missing and unknown fields.

Called by `validation.parse_trainjob`. Strict like the API server, so that a file which runs locally is accepted by a
cluster too: no text for numbers, no snake_case names. What needs a look at several fields is in `validation.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainjob_api import contract
from trainjob_api.problems import ABSENT, Problem, path_of
from trainjob_api.v1alpha1 import TrainJob

_CONTAINER = "spec.template.spec.containers[0]"
_POD = "spec.template.spec"
SYNONYMS = {
    "args": f"{_CONTAINER}.args",
    "command": f"{_CONTAINER}.command",
    "env": f"{_CONTAINER}.env",
    "image": f"{_CONTAINER}.image",
    "resources": f"{_CONTAINER}.resources",
    "volumeMounts": f"{_CONTAINER}.volumeMounts",
    "workingDir": f"{_CONTAINER}.workingDir",
    **dict.fromkeys(
        ("gpus", "gpusPerWorker", "numGpus", "resourcesPerNode", "resourcesPerWorker", "useGpu"),
        f"{_CONTAINER}.resources.limits",
    ),
    **{
        name: f"{_POD}.{name}"
        for name in (
            "affinity",
            "containers",
            "imagePullSecrets",
            "nodeSelector",
            "priorityClassName",
            "schedulerName",
            "securityContext",
            "serviceAccountName",
            "tolerations",
            "topologySpreadConstraints",
            "volumes",
        )
    },
    "activeDeadline": "spec.activeDeadlineSeconds",
    "timeout": "spec.activeDeadlineSeconds",
    "cleanPodPolicy": "spec.podCleanup",
    "hangTimeout": "spec.hang.afterSeconds",
    "name": "metadata.name",
    "podTemplate": "spec.template",
    "ttl": "spec.ttlSecondsAfterFinished",
    **dict.fromkeys(
        ("nnodes", "nodes", "numNodes", "numWorkers", "parallelism", "replicas", "scalingConfig", "worldSize"),
        "spec.workers",
    ),
    **dict.fromkeys(
        ("nproc", "nprocPerNode", "numProcPerNode", "numProcesses", "procsPerNode", "slotsPerWorker"),
        "spec.processesPerWorker",
    ),
    "elasticPolicy": "spec.elastic",
    **dict.fromkeys(("max", "maxNodes", "maxReplicas"), "spec.elastic.maxWorkers"),
    **dict.fromkeys(("min", "minAvailable", "minNodes", "minReplicas"), "spec.elastic.minWorkers"),
    **dict.fromkeys(("failureConfig", "restartPolicy", "runPolicy"), "spec.failurePolicy"),
    **dict.fromkeys(("backoffLimit", "maxRestarts", "maxRetries", "retries"), "spec.failurePolicy.maxFailures"),
    "checkpointConfig": "spec.checkpoint",
    **dict.fromkeys(
        ("bucket", "checkpointDir", "checkpointPath", "outputDir", "path", "storagePath", "storageUri", "uri"),
        "spec.checkpoint.storage",
    ),
    **dict.fromkeys(
        ("keepCheckpoints", "keepLast", "maxToKeep", "numToKeep", "retain", "saveTopK", "saveTotalLimit"),
        "spec.checkpoint.keep",
    ),
    **dict.fromkeys(("checkpointScoreAttribute", "metric", "monitor"), "spec.checkpoint.scoreAttribute"),
    **dict.fromkeys(("checkpointScoreOrder", "mode"), "spec.checkpoint.scoreOrder"),
    **dict.fromkeys(("resume", "resumeFromCheckpoint"), "spec.checkpoint.resumeFrom"),
    "rdzvBackend": "spec.rendezvous.backend",
    **dict.fromkeys(("masterPort", "rdzvPort"), "spec.rendezvous.port"),
    "rdzvTimeout": "spec.rendezvous.timeoutSeconds",
}
"""What Ray, Kubeflow, torchrun, Lightning and Transformers call these things; case and underscores do not count."""

WANTED = {
    "bool_type": "must be true or false, without quotes",
    "dict_type": "must be a map (`key: value` lines)",
    "float_type": "must be a number, without quotes",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number, without quotes",
    "list_type": "must be a list (`- item` lines)",
    "model_type": "must be a map (`key: value` lines)",
    "string_type": "must be text; put it in quotes",
}
"""pydantic's error type -> what would be right."""

REQUIRED = {
    "metadata": "is required: at least `metadata: {name: ...}`",
    "metadata.name": "is required: the job's name",
    "spec": "is required: at least `spec.template`, with a container that trains",
    "spec.template": "is required: a pod template, `template: {spec: {containers: [{name: trainer, image: ..., "
    "command: [python, train.py]}]}}`",
}


def parse(document: Any) -> TrainJob | list[Problem]:
    """The object that a document of plain JSON values stands for, or everything that does not fit the models."""
    try:
        return TrainJob.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems: dict[str, Problem] = {}
        for details in error.errors(include_url=False):
            problem = _problem(document, details)
            problems.setdefault(problem.field, problem)
        return list(problems.values())


def _problem(document: Any, details: ErrorDetails) -> Problem:
    kind = details["type"]
    path, value = _resolve(document, details["loc"])
    if kind == "missing":
        path.append(details["loc"][-1])
    field = path_of(path)
    if kind == "missing":
        return Problem(field, ABSENT, REQUIRED.get(field, f"is required: {description(path)}"))
    if kind == "extra_forbidden":
        return Problem(field, value, _unknown(path))
    if path and path[-1] == "processesPerWorker":
        return Problem(field, value, "must be a whole number of at least 1, or auto")
    return Problem(field, value, _wanted(kind, value, details))


def _wanted(kind: str, value: Any, details: ErrorDetails) -> str:
    """What a field of the right name should hold."""
    limits = details.get("ctx", {})
    match kind:
        case "literal_error":
            return _one_of(re.findall(r"'([^']*)'", str(limits.get("expected"))), value)
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case "too_short":
            return f"must have at least {limits['min_length']} item{'s' if limits['min_length'] != 1 else ''}"
        case "too_long" | "string_too_long":
            return f"must have at most {limits['max_length']} {'items' if kind == 'too_long' else 'characters'}"
        case "string_pattern_mismatch" if limits["pattern"] == contract.TRACKING_PATTERN:
            return _tracker(str(value))
        case "string_pattern_mismatch":
            return "must be the name of a module, such as torch.nn"
        case _ if kind.startswith("datetime"):
            return "must be a time such as 2026-01-31T12:00:00Z"
    return WANTED.get(kind, details["msg"])


def _tracker(word: str) -> str:
    kind, _, where = word.partition("=")
    if kind in contract.TRACKERS and where:
        return "must be text without control characters"
    near = None if kind in contract.TRACKERS else nearest(kind, contract.TRACKERS)
    wanted = f"must be one of {', '.join(contract.TRACKERS)}, or that and where: {contract.TRACKERS[0]}=/logs"
    return wanted + (f"; did you mean {near}?" if near else "")


def _one_of(choices: Sequence[str], value: Any) -> str:
    listed = ", ".join(choice or '""' for choice in choices)
    near = nearest(value, choices) if isinstance(value, str) else None
    return f"must be one of {listed}" + (f"; did you mean {near}?" if near else "")


def _resolve(document: Any, location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """The steps of pydantic's location that are steps of the document (it adds the tried members of a union), and
    the value there.
    """
    path: list[str | int] = []
    value = document
    for step in location:
        if not _has(value, step):
            break
        path.append(step)
        value = value[step]
    return path, value


def _has(value: Any, step: str | int) -> bool:
    return (isinstance(value, dict) and step in value) or (
        isinstance(value, list) and isinstance(step, int) and step < len(value)
    )


# --- Unknown fields --------------------------------------------------------------------------------------------------


def _unknown(path: Sequence[str | int]) -> str:
    """The sentence about a field that no model has."""
    name, parent = str(path[-1]), model_at(path[:-1])
    fields = [alias for alias, _, _ in fields_of(parent)] if parent is not None else []
    near = nearest(name, fields)
    elsewhere = [place for place in places() if place.rsplit(".", 1)[-1].casefold() == _bare(name)]
    if near and _bare(near) == _bare(name):
        elsewhere = []
    synonym = next((place for word, place in SYNONYMS.items() if _bare(word) == _bare(name)), None)
    if elsewhere:
        return f"unknown field; it belongs at {' or '.join(elsewhere)}"
    if synonym:
        return f"unknown field; here it is {synonym}"
    if near:
        return f"unknown field; did you mean {near}?"
    if meant := nearest(name, list(SYNONYMS), _ELSEWHERE):
        return f"unknown field; did you mean {SYNONYMS[meant]}?"
    if away := nearest(name, [place.rsplit(".", 1)[-1] for place in places()], _ELSEWHERE):
        belongs = [place for place in places() if place.rsplit(".", 1)[-1] == away]
        return f"unknown field; did you mean {' or '.join(belongs)}?"
    return f"unknown field; this version knows here: {', '.join(fields)}"


_ELSEWHERE = 0.85
"""How near a name must be to one of another place: `code` is no `mode`."""


def nearest(word: str, choices: Sequence[str], cutoff: float = 0.7) -> str | None:
    """The choice that `word` most likely stands for, or None; case and underscores do not count."""
    bare = {_bare(choice): choice for choice in choices}
    found = difflib.get_close_matches(_bare(word), list(bare), n=1, cutoff=cutoff)
    return bare[found[0]] if found else None


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


@cache
def places() -> tuple[str, ...]:
    """The path of every field of a spec."""
    return tuple(_walk(("spec",)))


def _walk(path: tuple[str, ...]) -> Iterator[str]:
    model = model_at(path)
    for alias, _, _ in fields_of(model) if model is not None else []:
        yield ".".join((*path, alias))
        yield from _walk((*path, alias))


def description(path: Sequence[str | int]) -> str:
    """The description of the field at a path, for example `("spec", "rendezvous", "port")`; empty when it has none."""
    model = model_at(path[:-1])
    return next((text for alias, _, text in fields_of(model) if alias == path[-1]), "") if model is not None else ""


def model_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the map at a path of the object; None where the models say nothing (the template, labels)."""
    annotation: Any = TrainJob
    for step in path:
        if isinstance(step, str):
            model = _model_in(annotation)
            annotation = (
                next((kind for alias, kind, _ in fields_of(model) if alias == step), None)
                if model is not None
                else None
            )
    return _model_in(annotation)


def fields_of(model: type[BaseModel]) -> list[tuple[str, Any, str]]:
    """(name in JSON, annotation, description) of each field."""
    return [
        (field.alias or name, field.annotation, field.description or "") for name, field in model.model_fields.items()
    ]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `X`, `X | None`, `list[X]`, `Annotated[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, list, Annotated):
        return next((model for model in map(_model_in, get_args(annotation)) if model is not None), None)
    return None
