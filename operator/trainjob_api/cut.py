"""A text that is too long for its place: cut so that one sees it."""

from __future__ import annotations

MORE = "..."


def within(text: str, limit: int) -> str:
    """Of at most so many characters; what is left out stands as three dots."""
    return text if len(text) <= limit else text[: max(0, limit - len(MORE))] + MORE
