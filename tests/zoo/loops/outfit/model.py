"""What outfit.train imports from beside it."""

from __future__ import annotations

from tiny import Net


def build() -> Net:
    return Net()
