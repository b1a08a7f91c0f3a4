"""How long nothing has moved: of work that is given up once it stands still. Pure."""

from __future__ import annotations

from typing import Optional


class Standstill:
    """Since when nothing moves. Given to a second wait, it goes on from the first: who has waited long enough does not
    begin anew.
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._since: Optional[float] = None

    def for_s(self, seen: object, now: float) -> float:
        """Seconds for which it has been what is seen now."""
        if self._since is None or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since
