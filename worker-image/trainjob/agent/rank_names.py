"""How ranks are named to people. Pure."""

from __future__ import annotations

from typing import Tuple


def ranks_text(ranks: Tuple[int, ...]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    shown = ", ".join(str(r) for r in ranks[:16]) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"
