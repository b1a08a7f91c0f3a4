"""Why a script refused its arguments, out of what it wrote last. Pure."""

from __future__ import annotations

import re
from typing import Optional

from trainjob_api.contract import REFUSED_ARGUMENTS, RankError

_SAYS = re.compile(r"^(?:\S+: error: |Error: )(?P<what>.+)$", re.M)
"""argparse and absl; click."""


def of(exit_code: Optional[int], tail: str) -> Optional[RankError]:
    """None: it ended otherwise, or wrote no such thing."""
    said = list(_SAYS.finditer(tail)) if exit_code == REFUSED_ARGUMENTS else []
    return {"type": "SystemExit", "message": said[-1].group(0), "communication": False} if said else None
