"""How long a test waits for what comes within seconds where nobody else wants the machine."""

from __future__ import annotations

import os

HANG_S = float(os.environ.get("TRAINJOB_TEST_HANG_S", "600"))
"""Seconds that only a hang reaches; below the time limit of a test (`timeout` in pyproject.toml)."""
