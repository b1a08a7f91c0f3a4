"""Whether a pod template has fields that pods have, with values of their types.

Called by `validation.parse_trainjob`, on what a person wrote: a cluster would drop a misspelt field in silence. The
operator does not ask this, since its API server knows its own version's fields. What pods have stands in
`pod_fields.json` (made by `crds/pod_fields.py`). A field that is like none of them may be of a newer Kubernetes: that
one is a doubt, for which `tj validate` has a line, and no problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from trainjob_api import quantity
from trainjob_api.problems import Problem
from trainjob_api.shape import nearest

ROOT = "PodTemplateSpec"
TEMPLATE = "spec.template"

ELSEWHERE = {
    ("PodSpec", "image"): "it belongs to a container",
    ("PodSpec", "command"): "it belongs to a container",
    ("PodSpec", "args"): "it belongs to a container",
    ("PodSpec", "env"): "it belongs to a container",
    ("PodSpec", "volumeMounts"): "it belongs to a container",
    ("Container", "volumes"): "it belongs to the pod: spec.template.spec.volumes",
    ("Container", "nodeSelector"): "it belongs to the pod: spec.template.spec.nodeSelector",
    ("Container", "tolerations"): "it belongs to the pod: spec.template.spec.tolerations",
    ("Container", "serviceAccountName"): "it belongs to the pod: spec.template.spec.serviceAccountName",
    ("Container", "imagePullSecrets"): "it belongs to the pod: spec.template.spec.imagePullSecrets",
    ("Container", "limits"): "it belongs into the container's resources",
    ("Container", "requests"): "it belongs into the container's resources",
}
"""(kind, field): where people mean it to be."""

_SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "must be text; put it in quotes"),
    "integer": ((int,), "must be a whole number, without quotes"),
    "number": ((int, float), "must be a number, without quotes"),
    "boolean": ((bool,), "must be true or false, without quotes"),
}


@cache
def _document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(files("trainjob_api").joinpath("pod_fields.json").read_text("utf-8"))
    return read


def version() -> str:
    """The Kubernetes whose fields are known, for example 1.36."""
    return str(_document()["kubernetes"])


def pod_problems(template: Mapping[str, Any]) -> list[Problem]:
    """Misspelt and misplaced fields, and values of another type than the field's."""
    return [problem for problem, sure in _walk(TEMPLATE, ROOT, template) if sure]


def pod_doubts(template: Mapping[str, Any]) -> list[Problem]:
    """Fields that pods of the Kubernetes known here do not have, and that are like none of theirs."""
    return [problem for problem, sure in _walk(TEMPLATE, ROOT, template) if not sure]


def _walk(path: str, type_: str, value: Any) -> Iterator[tuple[Problem, bool]]:
    """(what is wrong, whether it surely is). A null is an absent field."""
    if value is None or type_ == "any":
        return
    if type_ in _SCALARS:
        kinds, wanted = _SCALARS[type_]
        if not isinstance(value, kinds) or (isinstance(value, bool) and type_ != "boolean"):
            yield Problem(path, value, wanted), True
    elif type_ == "quantity":
        yield from _quantity(path, value)
    elif type_.startswith("["):
        if not isinstance(value, list):
            yield Problem(path, value, "must be a list (`- item` lines)"), True
            return
        for at, item in enumerate(value):
            yield from _walk(f"{path}[{at}]", type_[1:-1], item)
    elif not isinstance(value, Mapping):
        yield Problem(path, value, "must be a map (`key: value` lines)"), True
    elif type_.startswith("{"):
        for key, item in value.items():
            yield from _walk(f"{path}[{key}]", type_[1:-1], item)
    else:
        known = _document()["kinds"][type_]
        for name, item in value.items():
            if name in known:
                yield from _walk(f"{path}.{name}", known[name], item)
            elif path != TEMPLATE:  # the template's own two fields: `template_rules` has better words
                yield _unknown(f"{path}.{name}", type_, name, known, item)


def _quantity(path: str, value: Any) -> Iterator[tuple[Problem, bool]]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number or (isinstance(value, str) and quantity.is_quantity(value)):
        return
    meant = quantity.suggestion(value) if isinstance(value, str) else None
    hint = f"; did you mean {meant}?" if meant else ""
    yield Problem(path, value, f"must be a quantity such as 2, 500m or 16Gi{hint}"), True


def _unknown(path: str, kind: str, name: str, known: Mapping[str, str], value: Any) -> tuple[Problem, bool]:
    if belongs := ELSEWHERE.get((kind, name)):
        return Problem(path, value, f"unknown field; {belongs}"), True
    if near := nearest(name, list(known)):
        return Problem(path, value, f"unknown field; did you mean {near}?"), True
    doubt = f"no field that pods of Kubernetes {version()} have; an older cluster drops or refuses it"
    return Problem(path, value, doubt), False
