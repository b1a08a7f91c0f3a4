"""What became of the creates of a job, and when they are tried next: no job may hammer an API server that says no.

One `Creates` a job, kept by the reconciler. A turn comes with every event of the job's other pods; creates that were
refused are left out of it until their pause is over. Pauses grow with the failures in a row, whatever the words: a
webhook may answer with a new number each time. Losing this costs one more try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from trainjob_operator.cluster import ClusterError
from trainjob_operator.core.model import CreatePod, Decision, EnsureService, Observed
from trainjob_operator.core.moments import after
from trainjob_operator.core.pods.naming import parse_slots, pod_name
from trainjob_operator.core.size.start import CREATE_LANDS_S
from trainjob_operator.loop.apply import Applied

TELL_S = 1.0
"""So long after a refusal a turn tells people why."""
REFUSED_PAUSES_S = (1.0, 15.0, 30.0, 60.0)
"""Quota, admission, rights: only people or other jobs can change it."""
MOST_A_TURN = 256
"""Pods that a turn creates, the others come with the next: a turn that creates thousands hears of no edit, and is given
up in the middle (reconciler.TURN_TIMEOUT_S)."""
UNANSWERED_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""5xx, 429, time-outs: it may be over in a moment."""

Situation = tuple[int, frozenset[str]]
"""Generation of the spec, and UIDs of the job's pods: a new spec, or the end of a pod, is worth a try at once."""


@dataclass
class Creates:
    """The memory of one job's creates."""

    refusals: tuple[str, ...] | None = None
    """As `Observed.refusals`; None: nothing was tried yet."""
    unanswered: str | None = None
    """As `Observed.unanswered`."""
    taken: frozenset[str] = frozenset()
    """Names of listed slots that pods bear which no list shows: somebody else's, or ours without its label."""
    _lost_at: float | None = None
    """When the answer to the create of a pod last did not come."""
    _failures: int = 0
    _not_before: float = 0.0
    _situation: Situation = field(default=(0, frozenset()))

    def seen(self, observed: Observed, now: float, steady: datetime) -> Observed:
        """The look, with what the next turn is to tell people, and whom it is to wait for."""
        left_s = self._lost_at + CREATE_LANDS_S - now if self._lost_at is not None else 0.0
        land_until = after(steady, left_s) if left_s > 0.0 else None
        return replace(observed, refusals=self.refusals, unanswered=self.unanswered, creates_land_until=land_until)

    @contextmanager
    def sending(self, decision: Decision, clock: Callable[[], float]) -> Iterator[None]:
        """While a decision is carried out: it may be given up in the middle, and what was sent by then is not heard
        of."""
        try:
            yield
        except ClusterError:
            raise  # of the status write: nothing was sent
        except BaseException:
            self._note_lost(decision, clock())
            raise

    def _note_lost(self, decision: Decision, now: float) -> None:
        if any(isinstance(action, CreatePod) for action in decision.actions):
            self._lost_at = now

    def due(self, decision: Decision, observed: Observed, now: float) -> tuple[Decision, float | None]:
        """The decision, without its creates if they rest; and the seconds until they are due again, if they do."""
        if not any(_creates(action) for action in decision.actions):
            return decision, None
        generation, pods = self._situation
        news = generation != observed.job.metadata.generation or not pods <= _situation(observed)[1]
        if now >= self._not_before or news:
            return decision, None
        rest = tuple(action for action in decision.actions if not _creates(action))
        return replace(decision, actions=rest), self._not_before - now

    def note(self, done: Applied, tried: bool, observed: Observed, now: float) -> float | None:
        """After a turn; `tried`: its creates were made, or it had none. Seconds until the next turn is worth it."""
        listed = (pod_name(done.job.metadata.name, slot) for slot in parse_slots(done.job.status.slots))
        self.taken = (self.taken | done.taken).intersection(listed)
        if not tried:
            return None
        trouble = done.creates
        if trouble is not None and trouble.unanswered is not None:
            self._lost_at = now
        if trouble is None:
            self.refusals, self.unanswered, self._failures, self._not_before = (), None, 0, 0.0
            return None
        news = set(trouble.refusals) != set(self.refusals or ())
        self.refusals = trouble.refusals
        # One answer that failed to come is no news for people; the second one is.
        unanswered = trouble.unanswered if self._failures else None
        news = news or (unanswered is None) != (self.unanswered is None)
        self.unanswered = unanswered
        pauses = REFUSED_PAUSES_S if trouble.refusals else UNANSWERED_PAUSES_S
        pause = max(pauses[min(self._failures, len(pauses) - 1)], trouble.retry_after_s)
        self._failures += 1
        self._not_before, self._situation = now + pause, _situation(observed)
        return min(TELL_S, pause) if news else pause


def a_share(decision: Decision) -> tuple[Decision, bool]:
    """The decision with as many of its creates as a turn makes, and whether that leaves some out."""
    pods = [action for action in decision.actions if isinstance(action, CreatePod)]
    if len(pods) <= MOST_A_TURN:
        return decision, False
    later = set(pods[MOST_A_TURN:])
    return replace(decision, actions=tuple(action for action in decision.actions if action not in later)), True


def _creates(action: object) -> bool:
    return isinstance(action, CreatePod | EnsureService)


def _situation(observed: Observed) -> Situation:
    pods: Iterable[str] = (pod.uid for pod in observed.pods if pod.owned)
    return observed.job.metadata.generation, frozenset(pods)
