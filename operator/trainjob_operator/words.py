"""Words and moments that come from outside, made safe to keep. Called wherever API objects are read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from trainjob_api import contract
from trainjob_operator.agents.report_fields import clean


def bounded(text: Any) -> str | None:
    """Words from outside without control characters, cut to what status holds; None: there are none."""
    return clean(str(text), contract.MESSAGE_LIMIT) if text else None


def time_of(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except (TypeError, ValueError):
        return None
