"""Kubernetes quantities (`20Gi`, `500m`): whether a text is one.

Called by the checks of `validation.py`; nothing here converts between units.
"""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_BYTES_SUFFIX = re.compile(r"(?P<number>[0-9.]+) *(?P<unit>[kKMGTPE]i?)[bB]?")


def is_positive_quantity(text: str) -> bool:
    """Whether Kubernetes reads this text as a quantity above zero."""
    match = _QUANTITY.fullmatch(text)
    return match is not None and any(digit in "123456789" for digit in match.group(1))


def is_quantity(text: str) -> bool:
    """Whether Kubernetes reads this text as a quantity, zero included."""
    return _QUANTITY.fullmatch(text) is not None


def suggestion(text: str) -> str | None:
    """The quantity that a text such as `20GB`, `20 Gi` or `20gb` probably means; None when it could be anything."""
    match = _BYTES_SUFFIX.fullmatch(text.strip().upper().replace("I", "i"))
    if match is None:
        return None
    unit = {"K": "k", "KI": "Ki"}.get(match["unit"].upper(), match["unit"])
    found = f"{match['number']}{unit}"
    return found if is_positive_quantity(found) else None
