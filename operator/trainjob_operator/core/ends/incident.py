"""One thing that broke: what `failures.py` finds and `budget.py` charges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract, cut
from trainjob_api.v1alpha1 import Failure


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One thing that broke, told by its first cause."""

    reason: str
    time: datetime
    message: str
    slot: int
    rank: int | None = None
    pod: str | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    traceback: str | None = None
    victims: int = 0
    counted: bool = True
    """Whether it costs something before any rule was asked."""
    agents_own: bool = False
    """The exit code is the agent's word for itself: no rule of the user's is about it."""
    strikes: bool = False
    """The worker itself is suspect: twice, and its pod is replaced."""
    replaces: bool = False
    """The worker itself is the cause: its pod is replaced at once."""
    avoid_node: bool = False
    """Its node is suspect, and the scheduler does not know: the next pods keep away from it."""

    def failure(self, attempt: int) -> Failure:
        """As status shows it."""
        return Failure(
            attempt=attempt,
            time=self.time,
            reason=self.reason,
            rank=self.rank,
            pod=self.pod,
            node=self.node,
            exit_code=self.exit_code,
            signal=self.signal,
            message=cut.within(self.message, contract.MESSAGE_LIMIT),
            traceback=self.traceback[-contract.TRACEBACK_LIMIT :] if self.traceback else None,
            victims=self.victims,
        )
