"""Each scenario has its own storage and temporary folder, and must leave nothing behind."""

from __future__ import annotations

from support.stages import stage

__all__ = ["stage"]
