"""The collectives of one attempt as a pure state machine: who has arrived, who is missing, what happens next.

Rank 0's agent feeds it (`leader`) and carries out the outputs. One collective is open at a time: every rank waits in
call n before it makes call n+1. A report that carries a checkpoint goes on after the last arrival: admitted (back
pressure), staged by every agent, its release note persisted by every agent, committed if a rank asked for that; only
then ranks are answered. Thus what a rank was promised rests on every agent's disk, never on one agent's memory.

Time comes in as an argument; nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from trainjob.agent.barriers.calls import Arrival, Calls
from trainjob.agent.call_names import by_rank_0_alone
from trainjob.agent.rank_names import ranks_text
from trainjob_api import contract


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

STOPPED_PATIENCE_S = 10.0
"""So long ranks wait for one that its agent was told to end: they are about to be ended too, without a traceback."""


class Barrier:
    """All inputs return what is to be done now, in order."""

    def __init__(self, world_size: int, indices: Iterable[int], warn_s: float) -> None:
        self.world_size = world_size
        self._indices = tuple(indices)
        self._warn_s = warn_s
        self._ended: Dict[int, str] = {}
        self._stopped: Dict[int, Tuple[float, str]] = {}
        """Ranks that their agent ended: until when nobody is refused for it, and how they ended."""
        self._unstaged: Dict[int, str] = {}
        """Why agents of stopped ranks cannot stage: told once those have had their time."""
        self._calls = Calls()
        self._phase = ARRIVING
        self._pending: Set[int] = set()
        self._began = 0.0
        self._next_warning = 0.0
        self._time_limit: Optional[Tuple[float, int]] = None
        self._released: Optional[Release] = None
        self._failed: Optional[Fail] = None
        self._answered = 0
        """The last call that was answered to all, or refused."""
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
        if rank in self._calls:
            return []
        if not self._calls:
            self._began = now - arrival.waited_s
            self._next_warning, self._time_limit = self._began + self._warn_s, None
        self._calls.add((rank,), arrival)
        self._limit(now, arrival)
        if not self._calls.is_like_the_first(arrival):
            return [self._fail(contract.FAIL_MISMATCH, self._calls.mismatch(), self._calls.ranks)]
        gone = self._gone()
        if gone:
            return [self._rank_gone(gone)]
        return self._complete() if len(self._calls) == self.world_size else []

    def arrive_together(self, now: float, ranks: Tuple[int, ...], arrival: Arrival) -> List[Output]:
        """The same of several ranks that call alike (`arrival` is of the first of them), at the price of one."""
        if not self._is_plain(ranks, arrival):
            return [out for rank in ranks for out in self.arrive(now, arrival._replace(rank=rank))]
        if not self._calls:
            self._began = now - arrival.waited_s
            self._next_warning, self._time_limit = self._began + self._warn_s, None
        self._calls.add(ranks, arrival)
        self._limit(now, arrival)
        return self._complete() if len(self._calls) == self.world_size else []

    def _is_plain(self, ranks: Tuple[int, ...], arrival: Arrival) -> bool:
        """Nobody is gone, repeats itself, or calls something else."""
        return (
            not self._ended
            and arrival.n > self._answered
            and min(ranks) >= 0
            and max(ranks) < self.world_size
            and self._calls.none_of(ranks)
            and self._calls.is_like_the_first(arrival)
        )

    def _limit(self, now: float, arrival: Arrival) -> None:
        if arrival.timeout_s is not None:
            mine = (now - arrival.waited_s + arrival.timeout_s, arrival.rank)
            self._time_limit = min(self._time_limit, mine) if self._time_limit else mine

    def ended(self, rank: int, how: str) -> List[Output]:
        """A rank's process has ended. One that has all its arrivals goes on: nothing more is needed of the ranks."""
        return self._are_gone({rank: how})

    def stopped(self, now: float, ranks: Iterable[int], how: str) -> List[Output]:
        """The same of ranks that their agent was told to end: for STOPPED_PATIENCE_S nobody is refused for it, nor
        named as missing.
        """
        for rank in ranks:
            if rank not in self._ended:
                self._stopped.setdefault(rank, (now + STOPPED_PATIENCE_S, how))
        return []

    # -- inputs from agents -----------------------------------------------------------------------------------------

    def admitted(self, n: int) -> List[Output]:
        """There is a place for the checkpoint."""
        return self._all_agents(STAGING) if self._is(ADMITTING, n) else []

    def staged(self, index: int, n: int) -> List[Output]:
        """An agent holds its ranks' files."""
        return self._one_agent(STAGING, index, n)

    def stage_failed(self, index: int, n: int, message: str, *, full: bool = False) -> List[Output]:
        """An agent cannot stage, for want of room if `full`: nobody gets a checkpoint out of this call. Where a rank of
        its own has ended inside the call, that is the cause: it may have taken its files with it. A stopped one may
        have, too.
        """
        if full or not self._is(STAGING, n):
            return self.refused(n, message, full=full)
        ranks = self._ranks_of(index)
        gone = tuple(rank for rank in ranks if rank in self._ended)
        if gone:
            failed = self._rank_gone(gone)
            self._failed = failed._replace(message=f"{failed.message} ({message})")
            return [self._failed]
        if any(rank in self._stopped for rank in ranks):
            self._unstaged[index] = message
            return []
        return self.refused(n, message)

    def refused(self, n: int, message: str, *, full: bool = False) -> List[Output]:
        """The checkpoint as a whole cannot be had."""
        reason = contract.FAIL_FULL if full else contract.FAIL_STAGING
        return [self._fail(reason, message, ())] if self._is(STAGING, n) or self._is(PERSISTING, n) else []

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
        waits = self._phase == ARRIVING and self._calls
        if waits and not self._stopped:  # asked with each arrival
            return self._next_warning if self._time_limit is None else min(self._next_warning, self._time_limit[0])
        moments = [until for until, _ in self._stopped.values()]
        if waits and self._time_limit is not None:
            moments.append(self._time_limit[0])
        return min(moments, default=None)

    def tick(self, now: float) -> List[Output]:
        """Time-outs and warnings that are due."""
        due = {rank: how for rank, (until, how) in self._stopped.items() if now >= until}
        if due:
            return self._are_gone(due)
        if self._phase != ARRIVING or not self._calls:
            return []
        if self._time_limit is not None and now >= self._time_limit[0]:
            arrival = self._calls.of(self._time_limit[1])
            missing = self.missing()
            text = (
                f"{self._calls.name()} waited {arrival.timeout_s:g} s (the time-out of rank {arrival.rank}) for "
                f"{ranks_text(missing)}, which did not call it."
            )
            return [self._fail(contract.FAIL_TIMEOUT, text, missing)]
        if now >= self._next_warning and not self._stopped:
            self._next_warning = now + self._warn_s
            arrival = self._calls.first
            return [Warn(arrival.n, arrival.kind, self.missing(), self._calls.ranks, now - self._began)]
        return []

    # -- what others may ask ------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """Number of the open collective; 0: none."""
        return self._calls.first.n if self._calls else 0

    @property
    def phase(self) -> str:
        """Where the open collective stands."""
        return self._phase

    def missing(self) -> Tuple[int, ...]:
        """Ranks that the open collective waits for."""
        return tuple(r for r in range(self.world_size) if r not in self._calls)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _is(self, phase: str, n: int) -> bool:
        return self._phase == phase and self.current == n

    def _ranks_of(self, index: int) -> range:
        each = self.world_size // max(1, len(self._indices))
        return range(index * each, (index + 1) * each)

    def _are_gone(self, hows: Dict[int, str]) -> List[Output]:
        self._ended.update(hows)
        for rank in hows:
            self._stopped.pop(rank, None)
        for index, message in self._unstaged.items():
            if not hows.keys().isdisjoint(self._ranks_of(index)):
                return self.stage_failed(index, self.current, message)
        if self._phase != ARRIVING or not self._calls:
            return []
        others = set(self._calls.ranks) - hows.keys()
        return [self._rank_gone(tuple(sorted(hows)))] if others else self._forget()

    def _gone(self) -> Tuple[int, ...]:
        return tuple(r for r in sorted(self._ended) if r not in self._calls)

    def _complete(self) -> List[Output]:
        if self._refusal is not None and self._calls.first.kind == contract.KIND_REPORT:
            return [self._fail(contract.FAIL_STORAGE, self._refusal, ())]
        if self._calls.saves:
            if self._calls.tears:
                return [self._fail(contract.FAIL_MISMATCH, self._calls.torn(), self._calls.ranks)]
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
        if self._calls.waits_for_the_commit:
            self._phase = COMMITTING
            return [Commit(self.current)]
        return [self._release()]

    def _release(self) -> Release:
        first = self._calls.first
        self._released = Release(
            first.n,
            first.kind,
            self._calls.stops,
            self._calls.saves,
        )
        self._answered = max(self._answered, first.n)
        self._forget()
        return self._released

    def _fail(self, reason: str, message: str, about: Tuple[int, ...]) -> Fail:
        waiting = self._calls.ranks
        self._failed = Fail(self._calls.last_n, waiting, reason, message, about)
        self._answered = max(self._answered, self._failed.n)
        self._forget()
        return self._failed

    def _forget(self) -> List[Output]:
        self._calls, self._phase, self._pending, self._time_limit = Calls(), ARRIVING, set(), None
        self._unstaged.clear()
        return []

    def _rank_gone(self, gone: Tuple[int, ...]) -> Fail:
        """Whether it was missing, or had arrived and died while it waited for others."""
        hows = "; ".join(f"rank {r} {self._ended[r]}" for r in gone)
        waiting = tuple(r for r in self._calls.ranks if r not in gone)
        text = (
            f"{hows}, but {ranks_text(waiting)} wait{'s' if len(waiting) == 1 else ''} for it in {self._calls.name()}. "
            "Every rank must make the same calls as often as the others."
        )
        never = self._calls.first.n == 1 and all(self._ended[rank].endswith("exit code 0") for rank in gone)
        if never and (why := by_rank_0_alone(self._calls.call(), waiting)):
            text += f" {why}"
        return self._fail(contract.FAIL_RANK_GONE, text, gone)._replace(ranks=waiting)
