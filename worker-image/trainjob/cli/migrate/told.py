"""What is said of a manifest that becomes ours: what changed, and what to look at."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


class Told:
    """Of one job, in the order in which it was found."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def change(self, theirs: str, ours: str) -> None:
        """A field of theirs, and what it is here."""
        self.lines.append(f"changed: {theirs} -> {ours}")

    def look(self, note: str) -> None:
        """What was not carried over, or means something else here."""
        self.lines.append(f"look at: {note}")
