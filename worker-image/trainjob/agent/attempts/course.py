"""The course of one attempt on this agent, as a pure state machine: asked to join, answered, ranks started, ended.

`attempt` feeds it and carries out the outputs; nothing here waits, sends or forks. However an attempt ends, it does so
once: the first end counts, what comes later finds nothing to do.
"""

from __future__ import annotations

from typing import List, NamedTuple, Union

from trainjob_api import contract


class Ask(NamedTuple):
    """Connect to rank 0's agent and ask to join."""


class Start(NamedTuple):
    """The join is answered: start the ranks."""


class GiveUp(NamedTuple):
    """Whatever was being done for the start is of no use any more."""


class EndUnstarted(NamedTuple):
    """There never were processes: say so of each rank, with the reason."""

    kind: str
    message: str


class EndRanks(NamedTuple):
    """Kill the ranks; this is why."""

    kind: str
    message: str


Output = Union[Ask, Start, GiveUp, EndUnstarted, EndRanks]

NEW = "new"
ASKING = "asking"
STARTING = "starting"
RUNNING = "running"
"""Ranks were forked; also when all have ended by themselves since."""
ENDED = "ended"
"""Its end is told, or being brought about."""
STOPPED = "stopped"
"""On an instruction."""
LOST = "The agent's container was restarted; its ranks ended with it."


class Course:
    """One attempt. Inputs return what is to be done now, in order."""

    def __init__(self) -> None:
        self.phase = NEW
        self.joined = False
        """The join was answered, whatever came after."""
        self.complete = False
        """The run's end record is written."""
        self._forked = False

    @property
    def unused(self) -> bool:
        """It was stopped before a rank was started: told again, it can begin anew."""
        return self.phase == STOPPED and not self._forked

    def begun(self, forked_before: bool) -> List[Output]:
        """Told to run. `forked_before`: an earlier agent of this pod did so for this attempt."""
        if self.phase != NEW:
            return []
        if forked_before:
            self.phase = ENDED
            return [EndUnstarted(contract.END_LOST, LOST)]
        self.phase = ASKING
        return [Ask()]

    def answered(self, completed: bool) -> List[Output]:
        """The join's answer (perhaps once more)."""
        if self.phase != ASKING:
            return []
        self.joined = True
        if completed:
            self.phase, self.complete = ENDED, True
            return []
        self.phase = STARTING
        return [Start()]

    def forking(self) -> None:
        """From here on there may be processes."""
        if self.phase != STARTING:
            raise RuntimeError(f"ranks are forked in phase {self.phase}")
        self.phase, self._forked = RUNNING, True

    def failed(self, kind: str, message: str) -> List[Output]:
        """It cannot begin, or must not go on."""
        before, self.phase = self.phase, self.phase if self.phase in (ENDED, STOPPED) else ENDED
        if before in (ENDED, STOPPED) or self.complete:
            return []
        if before == RUNNING:
            return [EndRanks(kind, message)]
        return [GiveUp(), EndUnstarted(kind, message)]

    def stopped(self) -> List[Output]:
        """Told to stop, or a newer attempt begins."""
        if self.phase == ENDED:
            return []
        before, self.phase = self.phase, STOPPED
        return [GiveUp()] if before in (ASKING, STARTING) else []

    def completed(self) -> None:
        """The run's end record is written."""
        self.complete = True
