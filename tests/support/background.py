"""Who is told of faults in the background where there must be none."""

from __future__ import annotations


def no_fault(error: BaseException) -> None:
    """An `on_fault`: the event loop tells, and the test sees it."""
    raise error
