"""A linter for structural schemas: what an API server would refuse in a CustomResourceDefinition, found without one.

Rules of https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/ (structural
schema, CEL cost); written down again here so that a change of the models is stopped by a unit test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TYPES = {"object", "array", "string", "integer", "number", "boolean"}
FORBIDDEN = {
    "$ref",
    "$defs",
    "definitions",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "const",
    "title",
    "default",
    "uniqueItems",
    "patternProperties",
    "prefixItems",
    "discriminator",
}
"""Not allowed in a structural schema, or (title, default, the combiners) not wanted in ours."""

Schema = dict[str, Any]


def faults(node: Schema, path: str = "") -> Iterator[str]:
    """Everything that is wrong with a schema node and what is below it, as sentences that begin with the path."""
    for word in sorted(FORBIDDEN & set(node)):
        yield f"{path}: {word} is not allowed"
    if node.get("x-kubernetes-int-or-string"):
        if "type" in node:
            yield f"{path}: int-or-string has no type"
    elif node.get("type") not in TYPES:
        yield f"{path}: type is {node.get('type')!r}"
    if "properties" in node and "additionalProperties" in node:
        yield f"{path}: properties and additionalProperties exclude each other"
    if node.get("type") == "array" and "items" not in node:
        yield f"{path}: items are missing"
    if (
        node.get("type") == "object"
        and not {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(node)
        and path != ".metadata"
    ):
        yield f"{path}: an object of which nothing is kept"
    missing = set(node.get("required", [])) - set(node.get("properties", {}))
    if missing:
        yield f"{path}: requires {sorted(missing)}, which it does not have"
    yield from _list_faults(node, path)
    for name, child in node.get("properties", {}).items():
        yield from faults(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(node.get(word), dict):
            yield from faults(node[word], f"{path}[]")


def _list_faults(node: Schema, path: str) -> Iterator[str]:
    kind, keys = node.get("x-kubernetes-list-type"), node.get("x-kubernetes-list-map-keys", [])
    if kind == "map":
        item = node["items"]
        for key in keys:
            if key not in item.get("required", []) and "default" not in item["properties"][key]:
                yield f"{path}: the list-map key {key} is neither required nor has a default"
        if not keys:
            yield f"{path}: a list-map without keys"
    if kind == "set" and node["items"]["type"] in ("object", "array"):
        yield f"{path}: a set of {node['items']['type']}s"


def nodes(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """(path, node) of every node, the root first."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(node.get(word), dict):
            yield from nodes(node[word], f"{path}[]")


def at(schema: Schema, path: str) -> Schema:
    """The node at a path such as `.spec.template.spec.containers[]`."""
    return next(node for found, node in nodes(schema) if found == path)
