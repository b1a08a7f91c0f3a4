"""Whether the CustomResourceDefinition is on the server (`knows_trainjobs`), and as new as this operator
(`fields_not_served`).

The latter is asked for once, at the start. An API server drops what its CRD does not know. A status field that is
dropped looks missing at the next turn and is written again, and that write asks for the next turn: without this check
an operator that was upgraded alone would write for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainjob_api import contract
from trainjob_api.schema import object_schema
from trainjob_operator.cluster import NotServed
from trainjob_operator.k8s.kubeapi import Api

_PATH = f"/openapi/v3/apis/{contract.API_VERSION}"
"""Open to everyone who is known to the server, as the CRD itself is not."""

Schema = dict[str, Any]


async def knows_trainjobs(api: Api) -> bool:
    """Whether the CustomResourceDefinition is there and served. Raises ClusterError."""
    try:
        found = await api.document(f"/apis/{contract.API_VERSION}")
    except NotServed:
        return False
    return contract.PLURAL in {resource.get("name") for resource in found.get("resources") or ()}


async def fields_not_served(api: Api) -> list[str]:
    """Paths of fields, such as `status.reason`, that this version uses and the server would drop. Raises ClusterError.

    The server publishes a schema a moment after its CRD came: NotServed until then.
    """
    schemas = (await api.document(_PATH)).get("components", {}).get("schemas", {})
    served: Schema = next((schema for schema in schemas.values() if _is_ours(schema)), {})
    return list(_missing(object_schema(), served, ""))


def _is_ours(schema: Schema) -> bool:
    kinds = schema.get("x-kubernetes-group-version-kind") or ()
    return any((kind.get("group"), kind.get("kind")) == (contract.GROUP, contract.KIND) for kind in kinds)


def _missing(wanted: Schema, served: Schema, path: str) -> Iterator[str]:
    if served.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in served:
        return
    for name, child in wanted.get("properties", {}).items():
        there = served.get("properties", {}).get(name)
        if there is None:
            yield f"{path}{name}"
        elif name != "metadata":
            yield from _missing(child.get("items", child), there.get("items", there), f"{path}{name}.")
