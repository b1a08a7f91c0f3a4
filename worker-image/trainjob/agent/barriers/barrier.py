"""The collectives of one attempt as a pure state machine: who has arrived, who is missing, what happens next.

Rank 0's agent feeds it (`leader`) and carries out the outputs. One collective is open at a time: every rank waits in
call n before it makes call n+1. A report that carries a checkpoint goes on after the last arrival: admitted (back
pressure), staged by every agent, its release note persisted by every agent, committed if a rank asked for that; only
then ranks are answered. Thus what a rank was promised rests on every agent's disk, never on one agent's memory.

Time comes in as an argument; nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from trainjob_api import contract


class Arrival(NamedTuple):
    """A rank's call. `n` counts its collectives from 1."""

    rank: int
    n: int
    kind: str
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoint that it brings; None: it brings none."""
    stop: bool = False
    waited_s: float = 0.0
    """Before its agent told of it."""
    step: Optional[int] = None
    """Of a report(), where the rank gives one."""


class Release(NamedTuple):
    """Answer ranks (None: all): call n is complete."""

    n: int
    kind: str
    stop: bool
    saved: bool
    """It carried a checkpoint."""
    ranks: Optional[Tuple[int, ...]] = None


class Fail(NamedTuple):
    """Answer `ranks` with an error. `about` are the ranks to blame."""

    n: int
    ranks: Tuple[int, ...]
    reason: str
    message: str
    about: Tuple[int, ...]


class Admit(NamedTuple):
    """Ask for a place in the upload queue; `admitted` when there is one."""

    n: int


class Stage(NamedTuple):
    """Every agent of `indices` stages its ranks' files."""

    n: int
    indices: Tuple[int, ...]


class Persist(NamedTuple):
    """Every agent of `indices` persists the release note."""

    n: int
    indices: Tuple[int, ...]


class Commit(NamedTuple):
    """Ranks wait until the checkpoint is committed."""

    n: int


class Warn(NamedTuple):
    """Ranks have been waiting for others for a while."""

    n: int
    kind: str
    missing: Tuple[int, ...]
    waiting: Tuple[int, ...]
    waited_s: float


Output = Union[Release, Fail, Admit, Stage, Persist, Commit, Warn]

ARRIVING = "arriving"
ADMITTING = "admitting"
STAGING = "staging"
PERSISTING = "persisting"
COMMITTING = "committing"

CALL_NAMES = {
    contract.KIND_REPORT: "report()",
    contract.KIND_BARRIER: "barrier()",
    contract.KIND_BROADCAST: "broadcast_from_rank_zero()",
}
MODE_ORDER = (contract.UPLOAD_NONE, contract.UPLOAD_ASYNC, contract.UPLOAD_SYNC)


class Barrier:
    """All inputs return what is to be done now, in order."""

    def __init__(self, world_size: int, indices: Iterable[int], warn_s: float) -> None:
        self.world_size = world_size
        self._indices = tuple(indices)
        self._warn_s = warn_s
        self._ended: Dict[int, str] = {}
        self._arrivals: Dict[int, Arrival] = {}
        self._phase = ARRIVING
        self._pending: Set[int] = set()
        self._began = 0.0
        self._next_warning = 0.0
        self._time_limit: Optional[Tuple[float, int]] = None
        self._released: Optional[Release] = None
        self._failed: Optional[Fail] = None
        self._refusal: Optional[str] = None

    # -- inputs from ranks ------------------------------------------------------------------------------------------

    def arrive(self, now: float, arrival: Arrival) -> List[Output]:
        """A rank calls (or its agent repeats the call after a lost connection)."""
        rank = arrival.rank
        if rank in self._ended or not 0 <= rank < self.world_size:
            return []
        if self._released is not None and arrival.n <= self._released.n:
            return [self._released._replace(ranks=(rank,))] if arrival.n == self._released.n else []
        if self._failed is not None and arrival.n <= self._failed.n:
            return [self._failed._replace(n=arrival.n, ranks=(rank,))]
        if rank in self._arrivals:
            return []
        if not self._arrivals:
            self._began = now - arrival.waited_s
            self._next_warning, self._time_limit = self._began + self._warn_s, None
        self._arrivals[rank] = arrival
        self._limit(now, arrival)
        if len(self._arrivals) > 1 and not self._matches(arrival):
            return [self._fail(contract.FAIL_MISMATCH, self._mismatch(), tuple(sorted(self._arrivals)))]
        gone = self._gone()
        if gone:
            return [self._rank_gone(gone)]
        return self._complete() if len(self._arrivals) == self.world_size else []

    def arrive_together(self, now: float, ranks: Tuple[int, ...], arrival: Arrival) -> List[Output]:
        """The same of several ranks that call alike (`arrival` is of the first of them), at the price of one."""
        if not self._is_plain(ranks, arrival):
            return [out for rank in ranks for out in self.arrive(now, arrival._replace(rank=rank))]
        if not self._arrivals:
            self._began = now - arrival.waited_s
            self._next_warning, self._time_limit = self._began + self._warn_s, None
        self._arrivals.update(dict.fromkeys(ranks, arrival))
        self._limit(now, arrival)
        return self._complete() if len(self._arrivals) == self.world_size else []

    def _is_plain(self, ranks: Tuple[int, ...], arrival: Arrival) -> bool:
        """Nobody is gone, repeats itself, or calls something else."""
        answered = max(0 if last is None else last.n for last in (self._released, self._failed))
        return (
            not self._ended
            and arrival.n > answered
            and min(ranks) >= 0
            and max(ranks) < self.world_size
            and self._arrivals.keys().isdisjoint(ranks)
            and (not self._arrivals or self._matches(arrival))
        )

    def _limit(self, now: float, arrival: Arrival) -> None:
        if arrival.timeout_s is not None:
            mine = (now - arrival.waited_s + arrival.timeout_s, arrival.rank)
            self._time_limit = min(self._time_limit, mine) if self._time_limit else mine

    def ended(self, rank: int, how: str) -> List[Output]:
        """A rank's process has ended. One that has all its arrivals goes on: nothing more is needed of the ranks."""
        self._ended[rank] = how
        if self._phase != ARRIVING or not self._arrivals:
            return []
        others = set(self._arrivals) - {rank}
        return [self._rank_gone((rank,))] if others else self._forget()

    # -- inputs from agents -----------------------------------------------------------------------------------------

    def admitted(self, n: int) -> List[Output]:
        """There is a place for the checkpoint."""
        return self._all_agents(STAGING) if self._is(ADMITTING, n) else []

    def staged(self, index: int, n: int) -> List[Output]:
        """An agent holds its ranks' files."""
        return self._one_agent(STAGING, index, n)

    def stage_failed(self, index: int, n: int, message: str) -> List[Output]:
        """An agent cannot stage: nobody gets a checkpoint out of this call."""
        return (
            [self._fail(contract.FAIL_STAGING, message, ())] if self._is(STAGING, n) or self._is(PERSISTING, n) else []
        )

    def persisted(self, index: int, n: int) -> List[Output]:
        """An agent's release note is on its disk."""
        return self._one_agent(PERSISTING, index, n)

    def committed(self, n: int) -> List[Output]:
        """The checkpoint's manifest is on storage."""
        return [self._release()] if self._is(COMMITTING, n) else []

    def commit_failed(self, n: int, message: str) -> List[Output]:
        """It could not be stored."""
        return [self._fail(contract.FAIL_STORAGE, message, ())] if self._is(COMMITTING, n) else []

    def refuse_reports(self, message: str) -> List[Output]:
        """Checkpoints cannot be stored, and the job is to fail for it: the report that waits for a place, and every
        later one.
        """
        self._refusal = message
        return [self._fail(contract.FAIL_STORAGE, message, ())] if self._phase == ADMITTING else []

    def rejoined(self, index: int) -> List[Output]:
        """An agent's connection is new: repeat what it may not have heard."""
        if index not in self._pending:
            return []
        n = self.current
        return (
            [Stage(n, (index,))]
            if self._phase == STAGING
            else [Persist(n, (index,))]
            if self._phase == PERSISTING
            else []
        )

    # -- time -------------------------------------------------------------------------------------------------------

    def deadline(self) -> Optional[float]:
        """When `tick` has something to say."""
        if self._phase != ARRIVING or not self._arrivals:
            return None
        return self._next_warning if self._time_limit is None else min(self._next_warning, self._time_limit[0])

    def tick(self, now: float) -> List[Output]:
        """Time-outs and warnings that are due."""
        if self._phase != ARRIVING or not self._arrivals:
            return []
        if self._time_limit is not None and now >= self._time_limit[0]:
            arrival = self._arrivals[self._time_limit[1]]
            missing = self.missing()
            text = (
                f"{self._call()} waited {arrival.timeout_s:g} s (the time-out of rank {arrival.rank}) for "
                f"{_ranks(missing)}, which did not call it."
            )
            return [self._fail(contract.FAIL_TIMEOUT, text, missing)]
        if now >= self._next_warning:
            self._next_warning = now + self._warn_s
            arrival = next(iter(self._arrivals.values()))
            return [Warn(arrival.n, arrival.kind, self.missing(), tuple(sorted(self._arrivals)), now - self._began)]
        return []

    # -- what others may ask ------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """Number of the open collective; 0: none."""
        return next(iter(self._arrivals.values())).n if self._arrivals else 0

    @property
    def phase(self) -> str:
        """Where the open collective stands."""
        return self._phase

    def missing(self) -> Tuple[int, ...]:
        """Ranks that the open collective waits for."""
        return tuple(r for r in range(self.world_size) if r not in self._arrivals)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _is(self, phase: str, n: int) -> bool:
        return self._phase == phase and self.current == n

    def _matches(self, arrival: Arrival) -> bool:
        first = next(iter(self._arrivals.values()))
        return (arrival.n, arrival.kind) == (first.n, first.kind)

    def _gone(self) -> Tuple[int, ...]:
        return tuple(r for r in sorted(self._ended) if r not in self._arrivals)

    def _complete(self) -> List[Output]:
        if self._refusal is not None and next(iter(self._arrivals.values())).kind == contract.KIND_REPORT:
            return [self._fail(contract.FAIL_STORAGE, self._refusal, ())]
        if any(a.mode is not None for a in self._arrivals.values()):
            if len({a.step for a in self._arrivals.values()} - {None}) > 1:
                return [self._fail(contract.FAIL_MISMATCH, self._torn(), tuple(sorted(self._arrivals)))]
            self._phase = ADMITTING
            return [Admit(self.current)]
        return [self._release()]

    def _all_agents(self, phase: str) -> List[Output]:
        self._phase, self._pending = phase, set(self._indices)
        return [Stage(self.current, self._indices) if phase == STAGING else Persist(self.current, self._indices)]

    def _one_agent(self, phase: str, index: int, n: int) -> List[Output]:
        if not self._is(phase, n) or index not in self._pending:
            return []
        self._pending.discard(index)
        if self._pending:
            return []
        if phase == STAGING:
            return self._all_agents(PERSISTING)
        if any(a.mode == contract.UPLOAD_SYNC for a in self._arrivals.values()):
            self._phase = COMMITTING
            return [Commit(self.current)]
        return [self._release()]

    def _release(self) -> Release:
        first = next(iter(self._arrivals.values()))
        self._released = Release(
            first.n,
            first.kind,
            any(a.stop for a in self._arrivals.values()),
            any(a.mode is not None for a in self._arrivals.values()),
        )
        self._forget()
        return self._released

    def _fail(self, reason: str, message: str, about: Tuple[int, ...]) -> Fail:
        waiting = tuple(sorted(self._arrivals))
        self._failed = Fail(max(a.n for a in self._arrivals.values()), waiting, reason, message, about)
        self._forget()
        return self._failed

    def _forget(self) -> List[Output]:
        self._arrivals, self._phase, self._pending, self._time_limit = {}, ARRIVING, set(), None
        return []

    def _rank_gone(self, gone: Tuple[int, ...]) -> Fail:
        """Whether it was missing, or had arrived and died while it waited for others."""
        hows = "; ".join(f"rank {r} {self._ended[r]}" for r in gone)
        waiting = tuple(r for r in sorted(self._arrivals) if r not in gone)
        text = (
            f"{hows}, but {_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''} for it in {self._call()}. "
            "Every rank must make the same calls as often as the others."
        )
        return self._fail(contract.FAIL_RANK_GONE, text, gone)._replace(ranks=waiting)

    def _torn(self) -> str:
        groups: Dict[int, List[int]] = {}
        for rank, a in sorted(self._arrivals.items()):
            if a.step is not None:
                groups.setdefault(a.step, []).append(rank)
        steps = "; ".join(f"{_ranks(tuple(ranks))} at step {step}" for step, ranks in sorted(groups.items())[:4])
        return (
            f"The ranks saved different steps in one report(): {steps}. Such states do not belong together, so nothing "
            "was saved. Report the same step on every rank; leave step= out where each rank counts for itself."
        )

    def _mismatch(self) -> str:
        groups: Dict[Tuple[str, int], List[int]] = {}
        for rank, a in sorted(self._arrivals.items()):
            groups.setdefault((a.kind, a.n), []).append(rank)
        calls = "; ".join(
            f"{_ranks(tuple(ranks))} called {CALL_NAMES.get(kind, kind)} as collective {n}"
            for (kind, n), ranks in groups.items()
        )
        return (
            f"The ranks made different calls: {calls}. report(), barrier() and broadcast_from_rank_zero() must be "
            "called by every rank, in the same order."
        )

    def _call(self) -> str:
        first = next(iter(self._arrivals.values()))
        return f"{CALL_NAMES.get(first.kind, first.kind)} (collective {first.n} of this attempt)"


def _ranks(ranks: Tuple[int, ...]) -> str:
    shown = ", ".join(str(r) for r in ranks[:16]) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def ranks_text(ranks: Tuple[int, ...]) -> str:
    """`rank 3` or `ranks 1, 2`."""
    return _ranks(ranks)
