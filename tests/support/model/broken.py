"""The promises, asked after each step of a small world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob_api.v1alpha1 import TrainJobStatus
from trainjob_operator.core import make
from trainjob_operator.core.model import PodPhase

if TYPE_CHECKING:
    from support.model.state import State


class Broken(AssertionError):
    """A promise does not hold."""


def check(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def check_write(state: State, old: TrainJobStatus, new: TrainJobStatus) -> None:
    """Two versions of a status, the second about to be stored."""
    check(old.next_slot <= new.next_slot, "nextSlot goes back")
    counted, before = new.failures.counted, old.failures.counted
    check(before <= counted <= before + 1, f"counted goes from {before} to {counted} in one write")
    check(counted <= state.incidents, f"{counted} failures are counted, {state.incidents} things were broken")
    check(new.failures.preemptions == 0, "a preemption is counted where there was none")
    if old.attempt is not None:
        check(new.attempt is not None, "the newest attempt is forgotten")
        assert new.attempt is not None
        check(old.attempt.number <= new.attempt.number <= old.attempt.number + 1, "attempts do not rise one by one")
        if new.attempt.number == old.attempt.number:
            check(old.attempt.members == new.attempt.members, "a committed attempt changes its members")
            check(not (old.attempt.state == "Ended" and new.attempt.state == "Running"), "an ended attempt runs again")
    for ended in ("Complete", "Failed"):
        if old.holds(ended):
            changed = old.model_copy(update={"observed_generation": new.observed_generation})
            check(changed == new, f"a job that is {ended} is changed")
    check(not (new.holds("Complete") and new.holds("Failed")), "Complete and Failed at once")


def check_two_groups(state: State, slot: int, made: str) -> None:
    """Without agents nothing but its absence fences a group: a pod of the next one may not even be created before."""
    if not make.is_plain(made) or state.job is None or state.job.status.attempt is None:
        return
    attempt = state.job.status.attempt
    here = {pod.slot for pod in state.pods if pod.phase in (PodPhase.PENDING, PodPhase.RUNNING)}
    listed = _slots(attempt.members)
    check(here <= listed, f"slot {slot} of attempt {attempt.number} is created while {sorted(here - listed)} run")


def check_state(state: State) -> None:
    """One moment by itself."""
    groups: dict[int, int] = {}
    places: dict[tuple[int, int], str] = {}
    for agent in state.agents:
        if agent.runs:
            place = agent.attempt, agent.index
            check(
                places.setdefault(place, agent.uid) == agent.uid, f"two pods are index {place[1]} of attempt {place[0]}"
            )
            groups[agent.attempt] = groups.get(agent.attempt, 0) + 1
            if groups[agent.attempt] == agent.workers:
                check(
                    not any(n == _size(state, a) for a, n in groups.items() if a != agent.attempt), "two groups train"
                )
            check(
                state.job is None or (state.job.status.attempt is not None and agent.attempt <= state.job.status.attempt.number),
                f"attempt {agent.attempt} runs and is not committed",
            )  # fmt: skip
    if state.job is not None:
        _check_spares(state)
        failed, complete = state.job.status.holds("Failed"), state.job.status.holds("Complete")
        # Without agents nobody knows of a success but its pod.
        told = state.job.spec.checkpoint.storage is not None
        check(not (failed and state.completed and told), "Complete on storage, and Failed in status")
        check(not complete or state.completed, "Complete in status, and no end record on storage")


def _check_spares(state: State) -> None:
    """A spare trains only as a member of an attempt that status names, and is none of the running one."""
    assert state.job is not None
    status = state.job.status
    attempt, spares = status.attempt, _slots(status.spares)
    check(spares <= _slots(status.slots), f"spares {status.spares} are not all listed ({status.slots})")
    check(not (spares and (status.holds("Complete") or status.holds("Failed"))), "a job that is over has spares")
    if attempt is None:
        return
    members = sorted(_slots(attempt.members))
    check(attempt.state == "Ended" or not spares & set(members), "a member of what runs is a spare")
    for agent in state.agents:
        if agent.runs and agent.attempt == attempt.number:
            check(
                members[agent.index : agent.index + 1] == [agent.slot],
                f"slot {agent.slot} trains as index {agent.index} of {attempt.members}",
            )


def _size(state: State, attempt: int) -> int:
    return next(agent.workers for agent in state.agents if agent.attempt == attempt)


def _slots(text: str) -> set[int]:
    from trainjob_operator.core.pods.naming import parse_slots

    return set(parse_slots(text))
