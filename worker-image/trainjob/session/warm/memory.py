"""Whom the kernel ends first where memory runs out: the warm parent, forks of it that wait, and the process that feeds
trackers: no step is lost then.

Called by `parent` and `trackers.process` in themselves, and by `gate` in a fork that gets its order: a rank, or the
store of all ranks, is as safe as a plain rank. Where the kernel does not take the word, things are as they would be
without.
"""

from __future__ import annotations

from typing import Optional

PATH = "/proc/self/oom_score_adj"
FIRST = 1000
"""The most that there is."""
_own: Optional[str] = None


def go_first() -> None:
    """This process, and what it forks."""
    global _own
    try:
        with open(PATH, encoding="ascii") as file:
            own = file.read().strip()
        _write(str(FIRST))
        _own = own
    except OSError:
        pass


def stay() -> None:
    """From now on as it was before `go_first`; a process may go back to where it came from."""
    if _own is not None:
        try:
            _write(_own)
        except OSError:
            pass


def _write(score: str) -> None:
    with open(PATH, "w", encoding="ascii") as file:
        file.write(score)
