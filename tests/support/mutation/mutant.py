"""One mistake that somebody could make, as a textual patch, and the test that must see it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` stands exactly once in the file."""

    name: str
    file: str
    """A pattern that one file fits, wherever in its part of the tree it lies."""
    old: str
    new: str
    test: str
    """A test function, `path::name`: it alone is run."""

    def path(self, root: Path) -> Path:
        """The file below the root of a tree."""
        found = sorted(root.glob(self.file))
        assert len(found) == 1, f"mistake {self.name!r}: {len(found)} files fit {self.file}, not one"
        return found[0]

    def applied(self, source: str) -> str:
        """The source with the mistake. Raises AssertionError when the source has changed: the patch is to be mended."""
        count = source.count(self.old)
        assert count == 1, f"mistake {self.name!r}: its text stands {count} times in {self.file}, not once"
        return source.replace(self.old, self.new)
