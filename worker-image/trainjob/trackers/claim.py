"""Whose turn it is to feed a tracker: the rules, without reading, writing or waiting. `turn` carries them out.

Two processes may follow one training for a while: one that was stopped, or cut off from the network, and the one that
was started in its place. Each takes a turn: an exclusive name in the job's storage with a number, the next free one.
The highest number has the turn. Who holds a lower one stops before its next batch and says that it has left; who
waits begins then, or when nothing has come of those before for LEASE_S, or after WAIT_S, whatever they do. What was
recorded last is written beside the claim: from there on the next one continues.

No time of day is written or compared, as the clocks of two machines may differ: who waits measures for itself how long
it has seen nothing change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WAIT_S = 10.0
"""So long those before are waited for at most, and a storage that fails."""
LEASE_S = 8.0
"""Those before count as dead when nothing has come of them for so long; one that lives answers within LOOK_S."""
LOOK_S = 2.0
BUCKET_LOOK_S = 4.0
"""Between two looks of one that has nothing to write, by which it hears that another waits."""
KEPT = 8
"""Turns that stay in the storage: nobody whose list is older than that takes a number again."""


class Mark(NamedTuple):
    """Up to which report a training is recorded. Marks compare: a later run is greater, then a later attempt."""

    run: int
    attempt: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Who takes a turn: written once, under an exclusive name."""

    number: int
    run: int
    attempt: int
    process: str
    """Another one for each feed: machine, process, and a random word."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What came of a turn: written by its holder alone."""

    began: bool
    """Whether it has ever fed: then it has waited for all before it, and its mark says what they had recorded."""
    left: bool
    mark: Mark | None


class Take(NamedTuple):
    """Take the turn with this number."""

    number: int


class Wait(NamedTuple):
    """Not yet."""

    why: str


class Begin(NamedTuple):
    """Feed what comes after `mark`; None: nothing is known to be recorded."""

    mark: Mark | None
    why: str


class Over(NamedTuple):
    """Another one feeds: never again."""

    why: str


def to_take(run: int, attempt: int, process: str, newest: Claim | None, *, leaves: bool = False) -> Take | Over:
    """Which turn to take. An older run or attempt never takes it from a later one; of two of the same attempt the one
    that came last has it, but not one that `leaves`: it was told that another goes on. One that has taken a turn
    without hearing of it has that.
    """
    if newest is None:
        return Take(1)
    if newest.process == process:
        return Take(newest.number)
    if leaves and (newest.run, newest.attempt) == (run, attempt):
        return Over(f"{newest.process} goes on in attempt {attempt}")
    if (newest.run, newest.attempt) > (run, attempt):
        return Over(f"{newest.process} feeds it for run {newest.run}, attempt {newest.attempt}")
    return Take(newest.number + 1)


def to_begin(
    number: int, newest: int, before: Sequence[State | None], unchanged_s: float, waited_s: float
) -> Begin | Wait | Over:
    """Whether who took turn `number` may feed. `before`: what came of the turns before it, see `those_before`;
    `unchanged_s`: for how long that is all the same.
    """
    if newest > number:
        return _taken(number, newest)
    mark = recorded(before)
    if all(state is not None and state.left for state in before):
        return Begin(mark, "nobody else feeds it")
    if unchanged_s >= LEASE_S:
        return Begin(mark, f"nothing has come of the one before for {LEASE_S:g} s")
    if waited_s >= WAIT_S:
        return Begin(mark, f"the one before has not left within {WAIT_S:g} s")
    return Wait("another process feeds it still")


def recorded(before: Sequence[State | None]) -> Mark | None:
    """What those before have recorded; None: nothing is known of it."""
    began = [state for state in before if state is not None and state.began]
    return began[-1].mark if began else None


def still_mine(number: int, newest: int) -> Over | None:
    """Asked before each batch."""
    return _taken(number, newest) if newest > number else None


def _taken(number: int, newest: int) -> Over:
    return Over(f"another process feeds it from now on (turn {newest}, after {number})")


def those_before(number: int, taken: Iterable[int], state_of: Callable[[int], State | None]) -> list[State | None]:
    """What came of the turns before `number`, backwards up to the last one that has fed; None: nothing was heard."""
    found: list[State | None] = []
    for earlier in sorted((other for other in taken if other < number), reverse=True):
        found.append(state_of(earlier))
        if (last := found[-1]) is not None and last.began:
            break
    return found


def is_recorded(mark: Mark | None, report: Mark) -> bool:
    """Whether the one before has recorded this report of the same run already. Another run's are others."""
    return mark is not None and mark.run == report.run and report <= mark


def has_gap(mark: Mark, first: Mark, first_run: int) -> bool:
    """Whether the one before recorded an earlier run of this training: it may have had no time for the end of that."""
    return first_run <= mark.run < first.run


def is_missing(mark: Mark, row: Mark, first: Mark, first_run: int) -> bool:
    """Whether this report, from before the first one of a later run of the same training, is to be recorded by that:
    the process of the run before had no time for it.
    """
    return has_gap(mark, first, first_run) and mark < row and row.position < first.position


def later(mark: Mark | None, other: Mark | None) -> Mark | None:
    """The greater one."""
    return max(filter(None, (mark, other)), default=None)


def to_forget(number: int, taken: Iterable[int]) -> list[int]:
    """Turns of which nobody needs to know any more, once `number` has begun."""
    return sorted(earlier for earlier in taken if earlier <= number - KEPT)


def dump_claim(claim: Claim) -> bytes:
    """As it is stored."""
    return _line({"run": claim.run, "attempt": claim.attempt, "process": claim.process})


def load_claim(number: int, data: bytes | None) -> Claim:
    """Whatever is stored: one that cannot be read is nobody's, and in nobody's way."""
    found = _object(data)
    try:
        return Claim(number=number, run=int(found["run"]), attempt=int(found["attempt"]), process=str(found["process"]))
    except (KeyError, TypeError, ValueError):
        return Claim(number=number, run=0, attempt=0, process="unknown")


def dump_state(state: State) -> bytes:
    """As it is stored."""
    mark = None if state.mark is None else list(state.mark)
    return _line({"began": state.began, "left": state.left, "recorded": mark})


def load_state(data: bytes | None) -> State | None:
    """None for one that is not there, or cannot be read: it is waited for as if nothing was heard."""
    found = _object(data)
    try:
        began, left, mark = found["began"] is True, found["left"] is True, found["recorded"]
        return State(began=began, left=left, mark=None if mark is None else Mark(*(int(part) for part in mark)))
    except (KeyError, TypeError, ValueError):
        return None


def _line(found: dict[str, Any]) -> bytes:
    return (json.dumps(found) + "\n").encode()


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
