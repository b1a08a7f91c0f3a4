"""Kubernetes quantities (`20Gi`, `500m`): whether a text is one.

Called by the checks of `validation.py`, and by the operator where it compares what pods request.
"""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_BINARY = "KMGTPE"
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BYTES_SUFFIX = re.compile(r"(?P<number>[0-9.]+) *(?P<unit>[kKMGTPE]i?)[bB]?")


def is_positive_quantity(text: str) -> bool:
    """Whether Kubernetes reads this text as a quantity above zero."""
    match = _QUANTITY.fullmatch(text)
    return match is not None and any(digit in "123456789" for digit in match.group(1))


def is_quantity(text: str) -> bool:
    """Whether Kubernetes reads this text as a quantity, zero included."""
    return _QUANTITY.fullmatch(text) is not None


def value_of(text: str) -> Decimal | None:
    """The number that Kubernetes reads, in the resource's own unit (cores, bytes, pieces); None: it reads none."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix[:1] in ("e", "E") and suffix[1:]:
        return number * Decimal(10) ** int(suffix[1:])
    if suffix.endswith("i"):
        return number * Decimal(1024) ** (_BINARY.index(suffix[0]) + 1)
    return number * Decimal(10) ** _DECIMAL[suffix]


def suggestion(text: str) -> str | None:
    """The quantity that a text such as `20GB`, `20 Gi` or `20gb` probably means; None when it could be anything."""
    match = _BYTES_SUFFIX.fullmatch(text.strip().upper().replace("I", "i"))
    if match is None:
        return None
    unit = {"K": "k", "KI": "Ki"}.get(match["unit"].upper(), match["unit"])
    found = f"{match['number']}{unit}"
    return found if is_positive_quantity(found) else None
