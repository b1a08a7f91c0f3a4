"""Slots in a status's text, in their order: `0-2,7`. For those who show a job; the rules have their own
(`core/pods/naming.py`). Pure.
"""

from __future__ import annotations

import re

LIMIT = 100_000
"""Slots of one range, whatever a status says."""
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def listed(text: str) -> list[int]:
    """Parts that are no range are left out."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match:
            found += range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + LIMIT) + 1)
    return found
