"""Names of temporary files say whose they are: TMPDIR outlives the ranks that write to it, and on one machine all ranks
share it. Called at a rank's boot.
"""

from __future__ import annotations

import tempfile
from typing import Any


def mark_names(mark: str) -> None:
    """Put `mark` into every name that tempfile makes up in this process and those that it forks: with any prefix and
    suffix, for folders and files. The agent removes such names once the ranks are gone. An empty mark changes nothing.
    """
    names: Any = getattr(tempfile, "_RandomNameSequence", None)
    tempfile.tempdir = None  # a process that was forked reads its own TMPDIR
    if mark and names is not None:
        marked = type("_Marked", (names,), {"__next__": lambda self: names.__next__(self) + mark})
        tempfile._name_sequence = marked()  # type: ignore[attr-defined]
