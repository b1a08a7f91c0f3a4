"""A run that may not last longer than it is given: TRAINJOB_TEST_UNTIL (seconds since 1970), which `.ci/run` sets.

Tests of real processes that have not begun by then are skipped, counted with the reason; the others always run. So that
it is not always the same ones, TRAINJOB_TEST_TURN (any text, a commit for example) says with which file a run begins.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, MutableSequence
from typing import TypeVar

UNTIL = "TRAINJOB_TEST_UNTIL"
TURN = "TRAINJOB_TEST_TURN"
REASON = f"no time was left for it ({UNTIL})"

Item = TypeVar("Item")


def is_over(now: float, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing that takes long begins any more."""
    until = environ.get(UNTIL)
    return until is not None and now >= float(until)


def order(items: MutableSequence[Item], group: Callable[[Item], str], environ: Mapping[str, str] = os.environ) -> None:
    """Where a run may be cut: begin elsewhere than other commits do, at any group, so that each is the first of some
    however soon the run is cut. What is of one group (a file) stays together, in its own order. The same in each of
    several pytest workers.
    """
    if environ.get(UNTIL) is None:
        return
    groups = list(dict.fromkeys(map(group, items)))
    first = zlib.crc32(environ.get(TURN, "").encode()) % max(1, len(groups))
    place = {name: (index - first) % len(groups) for index, name in enumerate(groups)}
    items[:] = sorted(items, key=lambda item: place[group(item)])
