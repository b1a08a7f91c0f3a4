"""Makes `operator/trainjob_api/pod_fields.json`: the fields of a pod template and their types.

By the kubernetes package's models; `python crds/pod_fields.py` prints it (`make crds`). The file is small and has no
prose, and launchers check templates by it without that package.
"""

from __future__ import annotations

import json
import re
from typing import Any

ROOT = "PodTemplateSpec"
_QUANTITIES = frozenset(
    {
        ("ResourceRequirements", "limits"),
        ("ResourceRequirements", "requests"),
        ("VolumeResourceRequirements", "limits"),
        ("VolumeResourceRequirements", "requests"),
        ("PodSpec", "overhead"),
        ("EmptyDirVolumeSource", "sizeLimit"),
        ("ResourceFieldSelector", "divisor"),
    }
)
"""Text to the models, a quantity to the API server: a number is taken as well."""
_PLAIN = {"str": "text", "int": "integer", "bool": "boolean", "float": "number", "object": "any", "datetime": "text"}


def fields() -> dict[str, dict[str, str]]:
    """Kind -> field -> type: a word of `trainjob_api.pod_schema`, another kind, `[type]` or `{type}`."""
    import kubernetes.client.models as models

    found: dict[str, dict[str, str]] = {}
    waiting = [f"V1{ROOT}"]
    while waiting:
        model: Any = getattr(models, waiting.pop())
        kind = _kind(model.__name__)
        if kind in found:
            continue
        found[kind] = {}
        for name, type_ in sorted(model.openapi_types.items()):
            field = model.attribute_map[name]
            known = "quantity" if (kind, field) in _QUANTITIES else _word(type_, waiting)
            found[kind][field] = "{quantity}" if known == "quantity" and type_[:4].lower() == "dict" else known
    return dict(sorted(found.items()))


def _kind(model: str) -> str:
    return re.sub(r"^(Core)?V1", "", model)


def _word(type_: str, waiting: list[str]) -> str:
    """The models' `list[V1Container]`, `dict(str, str)`, `str` in the file's own words."""
    if match := re.fullmatch(r"[Ll]ist\[(.+)\]", type_):
        return f"[{_word(match[1], waiting)}]"
    if match := re.fullmatch(r"[Dd]ict[(\[]str, (.+)[)\]]", type_):
        return f"{{{_word(match[1], waiting)}}}"
    if type_ in _PLAIN:
        return _PLAIN[type_]
    waiting.append(type_)
    return _kind(type_)


def document() -> str:
    """The file's text."""
    import kubernetes

    version = f"1.{kubernetes.__version__.split('.')[0]}"
    rows = [f"    {json.dumps(kind)}: {json.dumps(known)}" for kind, known in fields().items()]
    return f'{{\n  "kubernetes": "{version}",\n  "kinds": {{\n' + ",\n".join(rows) + "\n  }\n}\n"


if __name__ == "__main__":
    print(document(), end="")
