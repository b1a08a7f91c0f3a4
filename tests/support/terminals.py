"""A terminal of a test's own: what it is told of there, whatever the tests themselves were started on."""

from __future__ import annotations

import os

_OF_ANOTHER = ("CI", "NO_COLOR", "COLUMNS", "LINES")


def environment() -> dict[str, str]:
    """Of a program that is started there."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    return {**own, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
