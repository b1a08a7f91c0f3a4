"""A group whose workers have agents: they tell of their ranks, they are told which attempt to join, and what runs in a
pod can be another attempt than before.
"""

from __future__ import annotations

from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core import progress
from trainjob_operator.core.answers import Answer, End, Hold, Waker
from trainjob_operator.core.ends import drains, failures, pod_ends, verdict
from trainjob_operator.core.ends.budget import Record, is_early
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.model import AgentView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import spare_slots, worker_slots
from trainjob_operator.core.size import gang, presence, slots, start
from trainjob_operator.core.turn import Turn

LAST_WORD_S = 1.0
"""How long the end of a rank waits for what rank 0's agent has to say of it: the next attempt waits as long."""
COMPLETE_WORD_S = 10.0
"""The same of a job that is complete: no attempt waits for it, and a busy machine may be as late."""
SUCCESS = "all ranks ended with success"


class AgentGroup:
    """See `Group`."""

    joins = True

    def done(self, turn: Turn) -> Answer:
        """An agent has written or found the run's end record: done, even if the other pods are gone."""
        said = turn.complete_words()
        if not said:
            return None
        # The last progress and checkpoint are in the word of rank 0's agent, which another member's may overtake.
        leader = next(iter(turn.members()), -1)
        word, lives = turn.word(leader), leader in turn.kids.live
        until = _last_word_until(turn, word, min(aware(view.heard_at) for view in said), COMPLETE_WORD_S)
        if lives and (word is None or not word.completed) and turn.now < until:
            why = "completed; waiting for the last word of rank 0's agent"
            return Hold(why=why, until=until, event=Waker.AGENT, alone=True)
        return End(failed=False, reason=contract.REASON_COMPLETED, message=SUCCESS)

    def runs(self, turn: Turn) -> bool:
        """All agents have joined the attempt."""
        words = [turn.word(slot) for slot in turn.members()]
        return all(view is not None and view.joined for view in words)

    def find_end(self, turn: Turn) -> Incident | Hold | None:
        """By the agents' words, and those of kubelets."""
        return failures.find_incident(turn)

    def find_notice(self, turn: Turn) -> Incident | Hold | None:
        """Pods that stand and are to go."""
        return drains.notice(turn)

    def waits_for_leader_until(self, turn: Turn, incident: Incident) -> datetime | None:
        """Rank 0's agent alone tells of progress, and another agent's word of an end may overtake it.

        Without that a worker that broke after a new report would be charged as one that broke without any.
        """
        members, reporter = turn.members(), turn.word(incident.slot)
        if incident.rank is None or reporter is None or incident.slot == members[0] or members[0] not in turn.kids.live:
            return None
        leader = turn.leader_word()
        if progress.has_progressed(turn.status, leader) or (
            leader is not None and aware(leader.heard_at) >= aware(incident.time)
        ):
            return None
        return _last_word_until(turn, leader, reporter.heard_at, LAST_WORD_S)

    def record(self, turn: Turn) -> Record:
        """By what rank 0's agent told."""
        attempt, progressed = turn.running, progress.has_progressed(turn.status)
        early = attempt is not None and is_early(turn.now, attempt.started_at) and not progressed
        reported = turn.status.progress.position > 0
        return Record(progressed=progressed, early=early, reported_ever=reported, before=turn.failure_before)

    def failed_to_start(self, turn: Turn) -> Incident | None:
        """While none runs; what ends beside a running attempt is no failure of it."""
        # A member of the last attempt that goes after that has ended is part of the same incident.
        # A spare is none that the start counts on.
        apart = {*turn.former, *spare_slots(turn.status)}
        ended = [pod for slot, pod in sorted(turn.kids.ended.items()) if slot not in apart]
        if turn.was_running or not ended:
            return None
        incidents = [pod_ends.of_pod_before_start(turn, pod) for pod in ended]
        return min(incidents, key=lambda incident: (not incident.counted, incident.time, incident.slot))

    def may_have_completed(self, turn: Turn, incident: Incident) -> bool:
        """Storage may know what no member is left to say."""
        return verdict.may_have_completed(turn, incident)

    def may_be_complete(self, turn: Turn) -> bool:
        """See `may_have_completed`."""
        return verdict.is_unknown(turn)

    def give_up(self, turn: Turn) -> None:
        """Those that ended, are lost (`silence.py`) or about to be."""
        slots.replace_ended(turn)
        slots.replace_lost(turn)
        slots.replace_announced(turn)

    def give_back(self, turn: Turn) -> Answer:
        """Those beyond what the job goes on with; never the pods that hold what was trained."""
        return None if gang.holds_the_only_checkpoints(turn) else gang.give_back(turn, gang.beyond_enough(turn))

    def settle(self, turn: Turn) -> Answer:
        """Those that live, and new ones up to the wished size."""
        return slots.settle_slots(turn)

    def begin(self, turn: Turn) -> Answer:
        """Once all that are wished are there, or as many as suffice."""
        return start.begin_with_agents(turn)

    def ready(self, turn: Turn) -> int:
        """Ranks that run need no word from their agents: after a restart of the operator these are silent for a
        moment.
        """
        ran = turn.running is not None and turn.running.running_at is not None
        members = frozenset(turn.members() if ran else ())
        live = [slot for slot in worker_slots(turn.status) if slot in turn.kids.live]
        return sum(1 for slot in live if slot in members or presence.is_synced(turn, slot))


def _last_word_until(turn: Turn, word: AgentView | None, since: datetime, limit_s: float) -> datetime:
    """Until when an agent's word is waited for that another's has overtaken."""
    return after(since, limit_s) if word is not None else turn.listens_until
