"""What one check of `tj doctor` found: of this machine (`local.machine`) or of a cluster (`cluster.findings`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    level: Level
    found: str
    mend: str = ""
    """The command or the sentence that mends it."""
