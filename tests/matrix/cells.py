"""The matrix: each fault at each moment, with forks of a warm parent and with new interpreters; and what becomes of it.
Pure: `test_matrix.py` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from support.faults import BY_STEP, END, IMPORT, RENDEZVOUS, REPORT, RESTORE, STAGING, STEP, UPLOAD, Faults
from trainjob_api import contract

MOMENTS = (IMPORT, RENDEZVOUS, STEP, REPORT, STAGING, UPLOAD, RESTORE, END)
PREFORK = (contract.PREFORK_ALWAYS, contract.PREFORK_NEVER)
STRUCK_AT = 3
"""The step, of those moments that have one; steps 0 to 2 are acknowledged by then."""
BEFORE = 1
"""The step at which the first attempt ends of a job that is struck while it restores."""
VICTIM = 1
TEXT = "no luck today"


@dataclass(frozen=True)
class Kind:
    """A fault of the matrix."""

    name: str
    plan: Callable[[Faults, int | None, str], Faults]
    """The same, at that step and moment."""
    reason: str | None
    """That it is told by; None: training knows nothing of it."""
    counted: bool = True
    pod_goes: bool = False
    """With what it had staged: what is stored is all that is left of that worker."""


KILL = Kind("SIGKILL", lambda plan, step, at: plan.kill(VICTIM, at_step=step, at=at), contract.REASON_SIGNAL)
SEGFAULT = Kind("SIGSEGV", lambda plan, step, at: plan.segfaults(VICTIM, at_step=step, at=at), contract.REASON_SIGNAL)
RAISE = Kind(
    "exception",
    lambda plan, step, at: plan.raises(TEXT, rank=VICTIM, at_step=step, at=at),
    contract.REASON_USER_ERROR,
)
LEAVE = Kind(
    "exit-0-early", lambda plan, step, at: plan.leaves(VICTIM, at_step=step, at=at), contract.REASON_RANK_ENDED_EARLY
)
OUT_OF_MEMORY = Kind(
    "OOM-kill", lambda plan, step, at: plan.runs_out_of_memory(VICTIM, at_step=step, at=at), contract.REASON_OOM
)
AGENT = Kind(
    "agent-killed",
    lambda plan, step, at: plan.kill_agent(VICTIM, at_step=step, at=at),
    contract.REASON_POD_FAILED,
    pod_goes=True,
)
WARM_PARENT = Kind(
    "warm-parent-killed", lambda plan, step, at: plan.kill_warm_parent(VICTIM, at_step=step, at=at), None
)
POD = Kind(
    "pod-deleted",
    lambda plan, step, at: plan.delete_pod(VICTIM, at_step=step, at=at),
    contract.REASON_POD_LOST,
    pod_goes=True,
)
OPERATOR = Kind("operator-down", lambda plan, step, at: plan.freeze_operator(at_step=step, at=at), None)
KINDS = (KILL, SEGFAULT, RAISE, LEAVE, OUT_OF_MEMORY, AGENT, WARM_PARENT, POD, OPERATOR)


@dataclass(frozen=True)
class Cell:
    """One run."""

    kind: Kind
    at: str
    prefork: str

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.kind.name}-{self.at}-{self.prefork}"

    @property
    def plan(self) -> Faults:
        """Of a job that restores, the first attempt is ended by a kill."""
        step = STRUCK_AT if self.at in BY_STEP else None
        if self.at != RESTORE:
            return self.kind.plan(Faults(), step, self.at)
        return self.kind.plan(Faults().kill(0, at_step=BEFORE), step, self.at).in_attempt(2)

    @property
    def breaks(self) -> bool:
        """Whether an attempt ends by it."""
        return self.kind.reason is not None and not self.leaves_at_the_end

    @property
    def leaves_at_the_end(self) -> bool:
        """Who leaves when all is done leaves as it should."""
        return self.kind is LEAVE and self.at == END

    @property
    def failures(self) -> int:
        """What it costs, with the kill before it."""
        return (self.at == RESTORE) + (self.breaks and self.kind.counted)

    @property
    def preemptions(self) -> int:
        """The other budget."""
        return int(self.breaks and not self.kind.counted)

    @property
    def attempts(self) -> int:
        """In all."""
        return 1 + (self.at == RESTORE) + self.breaks


def cells() -> Iterator[Cell]:
    """All that there are: a rank that is no fork has no warm parent."""
    for kind in KINDS:
        for at in MOMENTS:
            for prefork in PREFORK:
                if kind is not WARM_PARENT or prefork == contract.PREFORK_ALWAYS:
                    yield Cell(kind, at, prefork)


def some() -> list[Cell]:
    """Of these a part: with forks and without, each fault at one moment and each moment with one fault, other pairs each
    way.
    """
    every = list(cells())
    found = []
    for shift, prefork in enumerate(PREFORK):
        kinds = [kind for kind in KINDS if any((cell.kind, cell.prefork) == (kind, prefork) for cell in every)]
        for number, kind in enumerate(kinds):
            at = MOMENTS[(number + shift * len(MOMENTS) // 2) % len(MOMENTS)]
            found.append(Cell(kind, at, prefork))
    return found
