"""Turns the models' JSON schema into the structural schema that a CustomResourceDefinition wants.

Called by `crd.py` and `reference.py`. Adds nothing of its own beside the outline of a pod template; the rules are in
`cel.py`.

Structural means: every node has a type, nothing is referred to or combined. Defaults are left out on purpose (but for
SERVED_DEFAULTS): they would be written into stored objects, where a later version could not change them. A field that
may be null is one that may be absent.
"""

from __future__ import annotations

from typing import Any

from trainjob_api.v1alpha1 import TrainJob, TrainJobSpec

Schema = dict[str, Any]

CONTAINERS_LIMIT = 32
"""Containers of a pod template: the CRD's rules look at each, so their number is bounded."""

SERVED_DEFAULTS = ("workers",)
"""Fields of the spec whose default the API server writes into the object: `kubectl scale` and the column need the
number there.
"""

_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
"""Keywords that are taken over as they are; `properties`, `items`, `additionalProperties` are walked into."""

_DROPPED = frozenset(
    {"title", "default", "$defs", "$ref", "anyOf", "const", "properties", "items", "additionalProperties"}
)


def object_schema() -> Schema:
    """The structural schema of a whole TrainJob."""
    document = TrainJob.model_json_schema(by_alias=True, mode="validation")
    whole = _structural(document, document["$defs"])
    properties = whole["properties"]
    properties["apiVersion"] = {"description": "Version of the object's schema.", "type": "string"}
    properties["kind"] = {"description": "TrainJob.", "type": "string"}
    properties["metadata"] = {"type": "object"}
    properties["spec"]["properties"]["template"] |= pod_template()
    for name in SERVED_DEFAULTS:
        properties["spec"]["properties"][name]["default"] = TrainJobSpec.model_fields[name].default
    whole["required"] = ["spec"]
    return whole


def pod_template() -> Schema:
    """What the rules read of a pod template. Everything else in it is kept and left to Kubernetes' own pod schema."""
    container: Schema = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 63},
            "command": {"type": "array", "items": {"type": "string"}},
        },
    }
    pod_spec: Schema = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["containers"],
        "properties": {
            "containers": {"type": "array", "minItems": 1, "maxItems": CONTAINERS_LIMIT, "items": container},
            "restartPolicy": {"type": "string", "maxLength": 32},
        },
    }
    return {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["spec"],
        "properties": {"metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "spec": pod_spec},
    }


def _structural(node: Schema, definitions: Schema) -> Schema:
    """One node and all below it. Raises ValueError on a construct that has no structural form: change the model
    then.
    """
    node = _resolved(node, definitions)
    options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]
    if len(options) > 1:
        return _int_or_string(node, options)
    if options:
        node = _resolved({**options[0], **{key: value for key, value in node.items() if key != "anyOf"}}, definitions)
    unknown = set(node) - set(_KEPT) - _DROPPED
    if unknown:
        raise ValueError(f"no structural form for {sorted(unknown)} in {node}")
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    if "properties" in node:
        result["properties"] = {name: _structural(child, definitions) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    elif node.get("additionalProperties") is True:
        result["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    return result


def _resolved(node: Schema, definitions: Schema) -> Schema:
    """The node with its `$ref` replaced by what it points at; what stands beside the reference counts more."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].rsplit("/", 1)[-1]]
    return {**_resolved(target, definitions), **{key: value for key, value in node.items() if key != "$ref"}}


def _int_or_string(node: Schema, options: list[Schema]) -> Schema:
    kinds = {option.get("type") for option in options}
    if kinds != {"integer", "string"}:
        raise ValueError(f"no structural form for a choice of {sorted(map(str, kinds))} in {node}")
    kept = {"description": node["description"]} if "description" in node else {}
    return {**kept, "x-kubernetes-int-or-string": True}
