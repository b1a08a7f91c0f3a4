"""A group without agents: kubelets alone tell of it, and each attempt has new pods.

Nothing fences a script without an agent but the absence of its predecessor; nobody tells of progress.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core.answers import Answer, End, Hold
from trainjob_operator.core.conditions import counting_pods, done_and_gone
from trainjob_operator.core.ends import verdict
from trainjob_operator.core.ends.budget import Record, is_early
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.plain_ends import first_end
from trainjob_operator.core.model import PodPhase
from trainjob_operator.core.pods.naming import parse_slots
from trainjob_operator.core.size import gang, start
from trainjob_operator.core.turn import Turn


class PlainGroup:
    """See `Group`."""

    joins = False

    def done(self, turn: Turn) -> Answer:
        """The trainer containers of all members have succeeded."""
        if turn.members() and turn.succeeded() == frozenset(turn.members()):
            return End(failed=False, reason=contract.REASON_COMPLETED, message="all workers ended with success")
        return None

    def runs(self, turn: Turn) -> bool:
        """All containers run, or have succeeded already."""
        pods = {slot: turn.kids.live.get(slot) for slot in set(turn.members()) - turn.succeeded()}
        return all(pod is not None and pod.phase is PodPhase.RUNNING for pod in pods.values())

    def find_end(self, turn: Turn) -> Incident | Hold | None:
        """By the kubelets' words."""
        return first_end(turn)

    def find_notice(self, turn: Turn) -> Incident | Hold | None:
        """Nobody could be told to save before."""
        return None

    def waits_for_leader_until(self, turn: Turn, incident: Incident) -> datetime | None:
        """There is none to wait for."""
        return None

    def record(self, turn: Turn) -> Record:
        """Nobody knows of progress."""
        attempt = turn.running
        early = attempt is not None and is_early(turn.now, attempt.started_at)
        return Record(progressed=False, early=early, reported_ever=False, before=turn.failure_before)

    def failed_to_start(self, turn: Turn) -> Incident | None:
        """Its attempt is committed before its pods: none comes up before it."""
        return None

    def may_have_completed(self, turn: Turn, incident: Incident) -> bool:
        """Kubelets alone know, and nothing is asked of storage."""
        return False

    def may_be_complete(self, turn: Turn) -> bool:
        """What came before it may have had agents."""
        return verdict.is_open(turn)

    def give_up(self, turn: Turn) -> None:
        """There is nobody beside the attempt."""

    def give_back(self, turn: Turn) -> Answer:
        """All of it, and with them their attempt, until they all run; not while something broke that is to be told."""
        attempt = turn.running
        starts = attempt is None or (attempt.running_at is None and not turn.is_broken)
        return gang.give_back(turn, list(parse_slots(turn.status.slots)) if starts else [])

    def settle(self, turn: Turn) -> Answer:
        """The members of the attempt, and nobody else."""
        if turn.running is None:
            turn.change(slots="", spares="")
        return None

    def begin(self, turn: Turn) -> Answer:
        """Once the group before is gone."""
        return start.begin_anew(turn)

    def ready(self, turn: Turn) -> int:
        """By their probes; those that have succeeded count."""
        return done_and_gone(turn) + sum(
            1
            for pod in counting_pods(turn)
            if pod.phase is PodPhase.SUCCEEDED or (pod.phase is PodPhase.RUNNING and pod.ready)
        )
