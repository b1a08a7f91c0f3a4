"""JSON documents that carry a checksum over themselves: manifests, share records, run claims.

A flipped bit in one of them must not be taken for a damaged file, another run or another score. Pure.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Dict, List, Mapping


def seal(doc: Mapping[str, Any]) -> bytes:
    """`doc` as it is stored."""
    return (json.dumps(dict(doc, check=_check(doc)), indent=1) + "\n").encode()


def unseal(text: bytes) -> Dict[str, Any]:
    """What `seal` was given. Raises ValueError, naming expected and found, for anything else."""
    try:
        doc = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"expected JSON, found {len(text)} bytes that are none") from None
    if not isinstance(doc, dict):
        raise ValueError(f"expected a JSON object, found {type(doc).__name__}")
    expected = doc.pop("check", None)
    found = _check(doc)
    if expected != found:
        raise ValueError(f"expected checksum {expected}, found {found}")
    return doc


def need(doc: Any, name: str) -> Any:
    """A field of a document that somebody else may have written. Raises ValueError."""
    if not isinstance(doc, dict) or name not in doc:
        raise ValueError(f"field {name!r} is missing")
    return doc[name]


def need_list(value: Any) -> List[Any]:
    """A list. Raises ValueError."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected a list, found {type(value).__name__}")
    return list(value)


def need_count(value: Any, name: str) -> int:
    """A whole number from 0. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}, expected a whole number from 0")
    return value


def need_number(value: Any, name: str) -> float:
    """A number that a float can hold. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond what a number may be") from None


def _check(doc: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(doc, sort_keys=True, separators=(',', ':')).encode()):08x}"
