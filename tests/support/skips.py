"""The closing lines of a test run: what was not tried, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def told(reasons: Iterable[str]) -> list[str]:
    """A line for each reason with its count, the most frequent first."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    if not counted:
        return []
    lines = [f"  {count:>4}  {reason}" for reason, count in sorted(counted.items(), key=lambda one: (-one[1], one[0]))]
    return [f"{counted.total()} skipped:", *lines]
