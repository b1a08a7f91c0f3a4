"""JSON documents that carry a checksum over themselves: manifests, share records, run claims.

A flipped bit in one of them must not be taken for a damaged file, another run or another score. Pure.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Dict, Mapping


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


def _check(doc: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(doc, sort_keys=True, separators=(',', ':')).encode()):08x}"
