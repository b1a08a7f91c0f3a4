"""What goes wrong, in whom and when. Pure: the same plan is read by the test that makes it, by the processes that meet its
moments, and by the hand that strikes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import NamedTuple

IMPORT = "import"
"""The script's own imports run."""
RENDEZVOUS = "rendezvous"
"""Inside the first call in which ranks meet, while the others wait there."""
STEP = "step"
"""At the top of a step."""
SAVE = "save"
"""While the files of a step's checkpoint are written."""
REPORT = "report"
"""Inside report() of a step, while the others are not there yet."""
STAGING = "staging"
"""A file of that step's checkpoint is about to enter the staging area of the rank's agent; report() waits."""
UPLOAD = "upload"
"""A file of that step's checkpoint is about to appear on storage."""
RESTORE = "restore"
"""While a checkpoint's files are read."""
END = "end"
"""After the last report."""
BY_STEP = (STEP, SAVE, REPORT, STAGING, UPLOAD)
BY_OTHERS = (STAGING, UPLOAD)
"""The agent, or its storage child, meets the moment: whoever is struck is somewhere else."""
INSIDE = (RENDEZVOUS, REPORT)
"""The blow comes a moment after the point, so that the rank is inside the call behind it."""


class What(Enum):
    """What goes wrong."""

    KILL = "SIGKILL"
    TERMINATE = "SIGTERM"
    SEGFAULT = "SIGSEGV"
    RAISE = "exception"
    EXIT = "exit"
    LEAVE = "exit 0 early"
    OUT_OF_MEMORY = "OOM kill"
    KILL_AGENT = "agent killed"
    KILL_WARM_PARENT = "warm parent killed"
    DELETE_POD = "pod deleted"
    FREEZE_OPERATOR = "operator down"
    KILL_OPERATOR = "operator killed"
    STOP_JOB = "job stopped"


WITHIN = (What.SEGFAULT, What.RAISE, What.EXIT, What.LEAVE, What.OUT_OF_MEMORY)
"""The rank's own process does it."""
ENDS_A_PROCESS = (*WITHIN, What.KILL, What.TERMINATE, What.KILL_AGENT, What.KILL_WARM_PARENT)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    what: What
    rank: int | None
    """That rank, or its agent, warm parent or pod. None: any, where the clock strikes."""
    at: str | None = None
    """The moment; None: by the clock."""
    step: int | None = None
    attempt: int | None = None
    """None: in whichever attempt gets there first."""
    inside: bool = False
    """A moment after the point, in the call behind it; others wait at the point until then."""
    text: str = ""
    code: int = 0

    def due(self, at: str, step: int | None, attempt: int) -> bool:
        """Whether a process that meets this moment meets this fault."""
        return self.at == at and self.step in (None, step) and self.attempt in (None, attempt)

    @property
    def whom(self) -> str:
        """For an error."""
        return f"{self.what.value} of rank {self.rank} at {self.at} {'' if self.step is None else self.step}".strip()


class Beat(NamedTuple):
    """A blow of the clock."""

    pause_s: float
    """Since the one before."""
    fault: Fault
    anywhere: bool
    """It does not wait until the attempt has made progress."""
    aim_s: float
    """Once a victim is there: polls alone would always strike at the same places."""
    choice: float
    """Which of several victims, in [0, 1)."""


@dataclass(frozen=True)
class Clock:
    """When faults without a moment strike."""

    low_s: float
    high_s: float
    count: int | None = None
    """None: without end."""
    anywhere: float = 0.0
    """Share of blows that do not wait for progress."""
    in_turn: bool = False


@dataclass(frozen=True)
class Faults:
    """A plan; each word makes a new one. A word that is no fault is about the last one."""

    seed: int = 0
    planned: tuple[Fault, ...] = ()
    clock: Clock | None = None

    # -- a rank's process ----------------------------------------------------------------------------------------------

    def kill(self, rank: int | None = None, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """SIGKILL."""
        return self._add(What.KILL, rank, at_step, at)

    def terminate(self, rank: int | None = None, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """SIGTERM."""
        return self._add(What.TERMINATE, rank, at_step, at)

    def segfaults(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """A real one."""
        return self._add(What.SEGFAULT, rank, at_step, at)

    def raises(self, text: str, *, rank: int, at_step: int | None = None, at: str | None = None) -> Faults:
        """RuntimeError(text) in the user's code, or in the call that it is inside."""
        return self._add(What.RAISE, rank, at_step, at, text=text)

    def exits(self, code: int, *, rank: int, at_step: int | None = None, at: str | None = None) -> Faults:
        """os._exit(code)."""
        return self._add(What.EXIT, rank, at_step, at, code=code)

    def leaves(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """sys.exit(0) while the others go on."""
        return self._add(What.LEAVE, rank, at_step, at)

    def runs_out_of_memory(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """It takes memory until the kernel kills it. In a `memory_group` only."""
        return self._add(What.OUT_OF_MEMORY, rank, at_step, at)

    # -- what is above it ----------------------------------------------------------------------------------------------

    def kill_agent(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """SIGKILL of the agent above that rank."""
        return self._add(What.KILL_AGENT, rank, at_step, at)

    def kill_warm_parent(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """SIGKILL of the process that this rank is a fork of."""
        return self._add(What.KILL_WARM_PARENT, rank, at_step, at)

    def delete_pod(self, rank: int, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """As with `kubectl delete pod`."""
        return self._add(What.DELETE_POD, rank, at_step, at)

    def freeze_operator(self, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """It says nothing until the hand lets it go on. Rank 0 meets the moment."""
        return self._add(What.FREEZE_OPERATOR, 0, at_step, at)

    def kill_operator(self, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """SIGKILL of the launcher. Rank 0 meets the moment."""
        return self._add(What.KILL_OPERATOR, 0, at_step, at)

    def stop_the_job(self, *, at_step: int | None = None, at: str | None = None) -> Faults:
        """As with Ctrl-C. Rank 0 waits until agents are told; every later step waits too, so that the word comes."""
        return self._add(What.STOP_JOB, 0, at_step, at)

    # -- about the last one --------------------------------------------------------------------------------------------

    def in_attempt(self, number: int) -> Faults:
        """Only in that attempt."""
        return self._change(attempt=number)

    def inside_the_next_call(self) -> Faults:
        """A moment later, so that the rank is inside the call behind the point; others wait at the point until then."""
        return self._change(inside=True)

    # -- by the clock --------------------------------------------------------------------------------------------------

    def every(self, low_s: float, high_s: float | None = None) -> Faults:
        """One of those that have no moment, at random, each `low_s` seconds, or after a random pause up to `high_s`."""
        return replace(self, clock=Clock(low_s, low_s if high_s is None else high_s))

    def in_turn(self) -> Faults:
        """One after the other instead of at random."""
        return replace(self, clock=replace(self._ticking, in_turn=True))

    def times(self, count: int) -> Faults:
        """So many blows of the clock."""
        return replace(self, clock=replace(self._ticking, count=count))

    def anywhere(self, share: float) -> Faults:
        """So many of them do not wait until the attempt has made progress: at import, in the join, while restoring."""
        return replace(self, clock=replace(self._ticking, anywhere=share))

    def beats(self) -> Iterator[Beat]:
        """The blows of the clock; the same for a seed."""
        clock, faults = self._ticking, [fault for fault in self.planned if fault.at is None]
        if not faults:
            raise ValueError("nothing is planned that the clock could strike: each fault has a moment")
        chance = random.Random(self.seed)
        number = 0
        while clock.count is None or number < clock.count:
            fault = faults[number % len(faults)] if clock.in_turn else chance.choice(faults)
            pause_s, aim_s = (chance.uniform(clock.low_s, clock.high_s) for _ in range(2))
            yield Beat(pause_s, fault, chance.random() < clock.anywhere, aim_s, chance.random())
            number += 1

    # -- for those who carry it out ------------------------------------------------------------------------------------

    def meets(self, at: str, step: int | None, attempt: int) -> bool:
        """Whether anything is planned for that moment, of any rank."""
        return any(fault.due(at, step, attempt) or _stopped_since(fault, at, step) for fault in self.planned)

    def done_within(self, rank: int) -> bool:
        """Whether this rank's process will be asked from outside to do something to itself."""
        return any(
            fault.rank == rank and fault.what in WITHIN and (fault.inside or fault.at in BY_OTHERS)
            for fault in self.planned
        )

    def to_json(self) -> str:
        """For an environment variable."""
        return json.dumps([{**asdict(fault), "what": fault.what.value} for fault in self.planned])

    @classmethod
    def from_json(cls, text: str) -> Faults:
        """What `to_json` wrote."""
        return cls(planned=tuple(Fault(**{**each, "what": What(each["what"])}) for each in json.loads(text)))

    @property
    def _ticking(self) -> Clock:
        if self.clock is None:
            raise ValueError("every(...) comes first")
        return self.clock

    def _add(
        self, what: What, rank: int | None, step: int | None, at: str | None, text: str = "", code: int = 0
    ) -> Faults:
        moment = at or (None if step is None else STEP)
        if moment is not None and rank is None:
            raise ValueError("only the clock strikes anybody: say which rank")
        if (moment in BY_STEP) != (step is not None):
            raise ValueError(f"a fault at {moment} {'needs a step' if moment in BY_STEP else 'has no step'}")
        return replace(
            self, planned=(*self.planned, Fault(what, rank, moment, step, None, moment in INSIDE, text, code))
        )

    def _change(self, **changes: object) -> Faults:
        if not self.planned:
            raise ValueError("this is about the last fault, and none is planned yet")
        return replace(self, planned=(*self.planned[:-1], replace(self.planned[-1], **changes)))  # type: ignore[arg-type]


def _stopped_since(fault: Fault, at: str, step: int | None) -> bool:
    """Whoever makes a step after the one at which the job was stopped, or a pod deleted, waits for the word."""
    comes_late = fault.what in (What.STOP_JOB, What.DELETE_POD)
    return comes_late and fault.at is not None and at == STEP and step is not None and step >= (fault.step or 0)
