"""How ranks are named to people. Pure."""

from __future__ import annotations

import re
from typing import FrozenSet, Set, Tuple

RANKS_LIMIT = 100_000
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def ranks_text(ranks: Tuple[int, ...]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    shown = ", ".join(str(r) for r in ranks[:16]) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def parse(text: str) -> FrozenSet[int]:
    """The ranks of `0,3-5`. Raises ValueError."""
    found: Set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= RANKS_LIMIT:
            raise ValueError("give ranks and ranges such as 0 or 0,3-5")
        found.update(range(first, last + 1))
    return frozenset(found)
