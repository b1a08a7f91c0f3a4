"""Why a script refused its arguments, out of what it wrote last. Pure."""

from __future__ import annotations

import re
from typing import Optional

from trainjob_api.contract import REFUSED_ARGUMENTS, RankError

_SAYS = re.compile(r"^(?:\S+: error: |Error: )(?P<what>.+)$", re.M)
"""argparse and absl; click."""
_LAST = re.compile(r"^usage: [^\n]*\n(?:[ ][^\n]*\n)*\S+: error: [^\n]+\s*\Z", re.M)
"""argparse's at the very end."""


def of(exit_code: Optional[int], tail: str) -> Optional[RankError]:
    """None: it ended otherwise, or wrote no such thing. A script that catches its parser's end may leave with another
    code: then this must be the last that it wrote.
    """
    if exit_code != REFUSED_ARGUMENTS and (not exit_code or not _LAST.search(tail)):
        return None
    said = list(_SAYS.finditer(tail))
    return {"type": "SystemExit", "message": said[-1].group(0), "communication": False} if said else None
