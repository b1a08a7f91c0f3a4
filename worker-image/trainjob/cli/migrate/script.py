"""A script's imports of Ray become ours, in place: nothing else of the text changes. Pure.

`imports` says what the statements become, `differences` what one should look at. Called by `command`.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from trainjob.cli.migrate import imports
from trainjob.cli.migrate.differences import Note, differences


class Migrated(NamedTuple):
    """What became of a script."""

    text: str
    """The whole new text; the given one where nothing of Ray is imported."""
    notes: list[Note]
    """By line of the given text."""
    statements: int
    """Import statements that were rewritten."""


def migrate(source: str) -> Migrated:
    """Raises SyntaxError for what is no Python."""
    tree = ast.parse(source)
    edits = imports.edits(tree, source)
    return Migrated(imports.applied(source, edits), differences(tree), len(edits))
