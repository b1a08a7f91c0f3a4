"""What the next start waits for after early ends: the back-off, as status remembers it.

Called by the rules in `decide.py`, by `slots.py` and `start.py`. How long the pause is says `budget.py`.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.turn import Turn


def retry_in(turn: Turn, seconds: float) -> None:
    """The next attempt, and the next new pod, wait this long."""
    retry_at = after(turn.now, seconds) if seconds > 0 else None
    turn.change(timing=turn.status.timing.model_copy(update={"retry_at": retry_at}))


def backs_off_until(turn: Turn) -> datetime | None:
    """Until when the next start waits after failures; None: it does not."""
    retry_at = turn.status.timing.retry_at
    return None if retry_at is None or turn.now >= aware(retry_at) else aware(retry_at)
