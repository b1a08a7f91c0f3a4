"""An example of every message that goes between agents, and between a rank and its agent, made of its fields' types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from trainjob.agent.wire.from_leader import Resume
from trainjob.agent.wire.packed import Held, pack
from trainjob_api import contract

NOTE = {"id": "1-2-3", "files": [["a/b.pt", 3, 0], ["c", 0, 1]], "metrics": {"loss": 0.5}}
RESUME: dict[str, Any] = {
    "checkpoint": {"id": "1-2-3", "source": "staged", "uri": "s3://b/c", "note": NOTE, "stored": ["c"]},
    "holders": {"10.0.0.1:7": "3"},
    "adopt": [NOTE],
}
FITTING: dict[str, Any] = {
    "kind": contract.KIND_REPORT,
    "mode": contract.UPLOAD_SYNC,
    "note": NOTE,
    "resume": Resume.parse(pack(RESUME)),
}
"""Fields that not every text fits."""
PLAIN: dict[Any, Any] = {int: 3, float: 0.5, bool: True, str: "ü\x00", bytes: b"\x00blob", Any: {"any": [None]}}


def example_of(word: type[Any]) -> Any:
    """With every field given."""
    hints = get_type_hints(word)
    return word(**{name: FITTING[name] if name in FITTING else _value(hint) for name, hint in hints.items()})


def _value(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is Held:
        return Held.of(NOTE, ["c"])
    if origin is Union:
        return _value(inner[0])
    if origin is tuple:
        return (_value(inner[0]),) * 2 if inner[-1] is Ellipsis else tuple(map(_value, inner))
    if origin is Mapping:
        return {_value(inner[0]): _value(inner[1])}
    return example_of(hint)
