"""All that can happen in a small world, moment by moment, each looked at once.

`Search` goes through all interleavings up to a depth; from each new moment it also goes on without faults, to see
that the job comes to its end, woken by named wakers alone. A broken promise is told with the way that led there.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from support.core import make_job
from support.model import broken
from support.model.broken import Broken
from support.model.operator_steps import finished, is_at_rest, looks_now, operator_steps
from support.model.state import State, canonical
from support.model.world_steps import KINDS, Step, fault_steps, world_steps
from trainjob_operator.core import decide as rules

LONGEST_REST = 400
"""Steps from any moment to the end, faults left out."""
COUNTED = {"rank end", "pod loss", "agent restart"}
PLAIN = {"runtime": {"agent": "Disabled"}}


@dataclass
class Found:
    """What a search has seen."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    """How moments end if nothing more befalls them."""
    complete: bool = False
    """Nothing is left within its bounds that was not gone on from."""


@contextmanager
def without_resync() -> Iterator[None]:
    """The net below all wakers is taken away."""
    real, rules.resync = rules.resync, lambda turn: None
    try:
        yield
    finally:
        rules.resync = real


def start(faults: Iterable[str], **spec: object) -> State:
    return State(job=make_job(**spec), faults=frozenset(faults))


class Search:
    """Breadth first, within a depth, and within so many deviations from the usual order of things (None: any)."""

    def __init__(self, depth: int, deviations: int | None = None, limit: int | None = None) -> None:
        self._depth, self._deviations, self._limit = depth, deviations, limit
        self._parents: dict[tuple, tuple[tuple | None, str]] = {}
        self._cost: dict[tuple, int] = {}
        self._settled: dict[tuple, str] = {}
        self.found = Found()

    def run(self, state: State) -> Found:
        """Raises Broken, with the way to it."""
        found, form = self.found, canonical(state)
        self._parents[form], self._cost[form] = (None, "the job is created"), 0
        frontier = [(form, state)]
        with without_resync():
            while frontier and found.depth < self._depth and not self._is_full:
                found.depth += 1
                frontier = [new for form, moment in frontier for new in self._go_on(form, moment)]
        found.states, found.complete = len(self._parents), not frontier
        return found

    @property
    def _is_full(self) -> bool:
        return self._limit is not None and len(self._parents) >= self._limit

    def _go_on(self, form: tuple, moment: State) -> list[tuple[tuple, State]]:
        new = []
        try:
            kind = rest(moment, self._settled)
            self.found.ends[kind] = self.found.ends.get(kind, 0) + 1
            for cost, (label, after) in self._steps(moment, self._cost[form]):
                self.found.steps += 1
                reached = canonical(after)
                if cost >= self._cost.get(reached, cost + 1):
                    continue
                self._parents.setdefault(reached, (form, label))
                self._cost[reached] = cost
                new.append((reached, after))
                broken.check_state(after)
        except Broken as error:
            raise Broken(_tale(self._parents, form, error)) from error
        return new

    def _steps(self, moment: State, cost: int) -> Iterator[tuple[int, Step]]:
        if self._deviations is None:
            everything = itertools.chain(operator_steps(moment), world_steps(moment), fault_steps(moment))
            yield from ((0, step) for step in everything)
            return
        for number, step in enumerate(_fair(moment)):
            if cost + (number > 0) <= self._deviations:
                yield cost + (number > 0), step
        yield from ((cost, step) for step in fault_steps(moment))


def _tale(parents: dict[tuple, tuple[tuple | None, str]], form: tuple | None, error: Broken) -> str:
    lines = []
    while form is not None:
        form, label = parents[form]
        lines.append(label)
    way = "\n".join(f"  {number:3}. {label}" for number, label in enumerate(reversed(lines)))
    return f"{error}\n{way}"


# --- Without faults to the end ----------------------------------------------------------------------------------------


def rest(state: State, settled: dict[tuple, str]) -> str:
    """How the job ends if nothing more befalls it: Complete, Failed or gone. Raises Broken if it never does, or if
    nobody wakes it.
    """
    passed, told = [], []
    moment = replace(state, faults=frozenset())
    while True:
        form = canonical(moment)
        if form in settled:
            kind = settled[form]
            break
        passed.append(form)
        kind = _end_of(moment)
        if kind:
            break
        step = next(_fair(moment), None)
        if step is None:
            raise Broken("nobody wakes the job any more; on the way:" + _way(told))
        if len(passed) > LONGEST_REST:
            raise Broken(f"no end after {LONGEST_REST} steps without faults; the last:" + _way(told[-30:]))
        try:
            broken.check_state(step[1])
        except Broken as error:
            raise Broken(f"{error}; going on without faults:" + _way([*told, step[0]])) from error
        told.append(step[0])
        moment = step[1]
    for form in passed:
        settled[form] = kind
    return kind


def _way(labels: list[str]) -> str:
    return "".join(f"\n    > {label}" for label in labels)


def _end_of(state: State) -> str | None:
    if looks_now(state) or state.turns or not is_at_rest(state):
        return None
    if state.job is None:
        return "gone"
    ended = finished(state.job.status)
    if ended == "Failed":
        broken.check(state.incidents > 0, "Failed, and nothing was broken")
        broken.check(
            state.incidents > state.job.spec.failure_policy.max_failures, "Failed, and the budget is not used up"
        )
    return ended


def _fair(state: State) -> Iterator[Step]:
    """What happens next if the world is quick, everything gets its turn, and nothing breaks."""
    world = list(world_steps(state))
    passing = [step for step in world if step[0].endswith(" s pass")]
    yield from (step for step in world if step not in passing)
    yield from operator_steps(state)
    if state.job is not None and state.job.spec.suspend:
        yield from fault_steps(state)
    yield from passing


# --- Worlds -----------------------------------------------------------------------------------------------------------


def worlds(at_once: int) -> Iterator[tuple[str, State]]:
    """One world for each set of so many faults, with agents, with a spare worker too, and without agents; a budget that
    holds and none.
    """
    stored: dict[str, Any] = {"checkpoint": {"storage": "/checkpoints"}}
    modes = (("agents", stored), ("spare", {**stored, "runtime": {"spareWorkers": 1}}), ("plain", PLAIN))
    for mode, spec in modes:
        for faults in itertools.combinations(KINDS, at_once):
            if mode == "plain" and set(faults) & {"agent restart", "delayed word"}:
                continue
            # Without an incident any budget is the same.
            for budget in (0, 3) if set(faults) & COUNTED else (0,):
                name = f"{mode}, {' + '.join(faults) or 'no fault'}, maxFailures {budget}"
                yield name, start(faults, failurePolicy={"maxFailures": budget}, podCleanup="None", **spec)


def main() -> None:
    parser = argparse.ArgumentParser(description="All that can happen in a job of two workers.")
    parser.add_argument("--depth", type=int, default=40, help="steps")
    parser.add_argument(
        "--deviations", type=int, help="from the usual order of things, beside the faults; default: any"
    )
    parser.add_argument("--faults", type=int, default=1, help="so many kinds in one world")
    parser.add_argument("--limit", type=int, help="states of one world")
    parser.add_argument("--only", default="", help="worlds whose name has this in it")
    arguments = parser.parse_args()
    total, begun, failed = 0, time.process_time(), 0
    for name, state in worlds(arguments.faults):
        if arguments.only not in name:
            continue
        at = time.process_time()
        try:
            found = Search(arguments.depth, arguments.deviations, arguments.limit).run(state)
        except Broken as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
            continue
        total += found.states
        print(
            f"{name}: {found.states} states, {found.steps} steps, depth {found.depth}"
            f"{', all there are' if found.complete else ''}; {found.ends}; {time.process_time() - at:.1f} s",
            flush=True,
        )
    print(f"{total} states, {failed} worlds with a broken promise, {time.process_time() - begun:.0f} CPU seconds")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
