"""Deletions that the API server refused, and when they are tried next: a policy that protects a pod is not asked all
the time, and nothing else of the job waits for it.

One `Removals` a job, kept by the reconciler. What was refused rests alone: another pod is deleted at once. Losing this
costs one more try.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trainjob_operator.core.model import Action, Decision, DeleteJob, DeletePod
from trainjob_operator.loop.apply import Applied
from trainjob_operator.loop.creates import REFUSED_PAUSES_S


@dataclass
class Removals:
    """The memory of one job's refused deletions."""

    told: tuple[str, ...] = ()
    """What was refused and told of; once is enough."""
    _refused: frozenset[str] = frozenset()
    """UIDs."""
    _failures: int = 0
    _not_before: float = field(default=0.0)

    def due(self, decision: Decision, now: float) -> tuple[Decision, float | None]:
        """The decision without the deletions that rest; and the seconds until they are due again, if any does."""
        resting = [action for action in decision.actions if _uid(action) in self._refused]
        if not resting or now >= self._not_before:
            return decision, None
        rest = tuple(action for action in decision.actions if action not in resting)
        return replace(decision, actions=rest), self._not_before - now

    def note(self, done: Applied, rested: bool, now: float) -> float | None:
        """After a turn; `rested`: some were left out. Seconds until the next turn is worth it."""
        if rested:
            self._refused |= done.refused
            self.told += tuple(text for text in done.refused_deletes if text not in self.told)
            return None
        self._refused, self.told = done.refused, done.refused_deletes
        if not self._refused:
            self._failures = 0
            return None
        pause = REFUSED_PAUSES_S[min(self._failures, len(REFUSED_PAUSES_S) - 1)]
        self._failures, self._not_before = self._failures + 1, now + pause
        return pause


def _uid(action: Action) -> str | None:
    return action.uid if isinstance(action, DeletePod | DeleteJob) else None
