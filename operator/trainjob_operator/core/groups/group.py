"""What differs between a group of workers with agents and one without: the questions that the rules ask of either.

`agents.py` and `plain.py` answer them; `groups.of` says which of the two a turn is about. A rule that holds for both
asks neither.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from trainjob_operator.core.answers import Answer, Hold
from trainjob_operator.core.ends.budget import Record
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.turn import Turn


class Group(Protocol):
    """Stateless: everything is in the turn."""

    joins: bool
    """New workers come up beside those that train, and take part from the next attempt on."""

    def done(self, turn: Turn) -> Answer:
        """Whether training is over, and well."""
        ...

    def runs(self, turn: Turn) -> bool:
        """Whether all ranks of the running attempt have been started."""
        ...

    def find_end(self, turn: Turn) -> Incident | Hold | None:
        """What ended the running attempt, if anything did."""
        ...

    def find_notice(self, turn: Turn) -> Incident | Hold | None:
        """What will end it, as Kubernetes says, and may be taken back."""
        ...

    def waits_for_leader_until(self, turn: Turn, incident: Incident) -> datetime | None:
        """Until when an end waits for rank 0's agent, which knows how far training came."""
        ...

    def record(self, turn: Turn) -> Record:
        """What the running attempt had achieved."""
        ...

    def failed_to_start(self, turn: Turn) -> Incident | None:
        """Pods that ended by themselves before an attempt counted on them: one failure, however many they are."""
        ...

    def may_have_completed(self, turn: Turn, incident: Incident) -> bool:
        """Whether what ended the running attempt left nobody who knows that training was not over."""
        ...

    def may_be_complete(self, turn: Turn) -> bool:
        """The same of the newest attempt, where the job is to fail for another reason than a worker's end."""
        ...

    def give_up(self, turn: Turn) -> None:
        """Workers beside the attempt that are of no use any more lose their slots."""
        ...

    def give_back(self, turn: Turn) -> Answer:
        """A start that gets nodes for a part of its workers gives those back."""
        ...

    def settle(self, turn: Turn) -> Answer:
        """Which slots there are."""
        ...

    def begin(self, turn: Turn) -> Answer:
        """The next attempt, once everyone needed is there."""
        ...

    def ready(self, turn: Turn) -> int:
        """How many workers are shown as ready, while the job is neither over nor suspended."""
        ...
