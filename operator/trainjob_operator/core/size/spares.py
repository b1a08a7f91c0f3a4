"""Spare workers (`spec.runtime.spareWorkers`): up beside those that train, so that a lost one is replaced at once.

Called by `slots.py` and `start.py`. A spare's slot is listed like any other, and marked in status until an attempt
takes it: the oldest ready one stands in for a worker that is not there, in the very write that begins the attempt. What
becomes of spares costs no budget, and no worker waits for it: workers come first. Nobody is spare while fewer train
than are wished.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainjob_api import contract
from trainjob_operator.core import make
from trainjob_operator.core.children import is_announced
from trainjob_operator.core.ends import budget
from trainjob_operator.core.ends.silence import says_nothing
from trainjob_operator.core.lifecycle import name_pods, name_workers
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import after, elapsed
from trainjob_operator.core.obstacles import GATED, UNSCHEDULABLE, word_of
from trainjob_operator.core.pods.naming import format_slots, parse_slots, spare_slots, worker_slots
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.least import target
from trainjob_operator.core.size.presence import has_node, is_synced, is_warm, missing
from trainjob_operator.core.size.suspected import suspected
from trainjob_operator.core.turn import Turn

SETTLED_S = 600.0
"""One that is lost after so long begins the count of tries anew."""


def wished(turn: Turn) -> int:
    """How many there are to be. Without agents nobody can take another's place; who makes room for another job has
    none.
    """
    if turn.is_suspended or turn.status.gave_way is not None or not turn.kind.speaks or make.is_plain(turn.make):
        return 0
    return turn.spec.runtime.spare_workers


def is_ready(turn: Turn, slot: int) -> bool:
    """Whether its agent waits, with what ranks are forks of made, in a pod that is to stay."""
    pod = turn.kids.live.get(slot)
    view = turn.kids.agent(pod)
    if pod is None or view is None or not is_synced(turn, slot):
        return False
    return view.quiet and is_warm(turn, slot) and not is_announced(pod) and not says_nothing(turn, pod)


def ready(turn: Turn, spares: Collection[int]) -> list[int]:
    """Those that could take a place now, the oldest first; before them those whose node is not to be kept away from."""
    able = sorted(slot for slot in spares if is_ready(turn, slot))
    if len(able) < 2:
        return able  # nothing to choose: most turns of most jobs
    avoided = {*turn.status.failures.avoid_nodes, *(node.name for node in suspected(turn))}
    return sorted(able, key=lambda slot: (turn.kids.live[slot].node in avoided, slot))


# --- Taking a place ---------------------------------------------------------------------------------------------------


def team(turn: Turn) -> tuple[int, ...]:
    """Who is to take part in the next attempt: the workers, and for those that are not there ready spares. A member of
    the last attempt that lives is waited for: nobody else may hold what was trained last.
    """
    workers = list(worker_slots(turn.status)[: target(turn)])
    able = ready(turn, spare_slots(turn.status)) if turn.running is None else []
    if able:
        free = target(turn) - len(workers)
        workers += able[:free]
        late = missing(turn, tuple(workers)).slots
        late = [slot for slot in late if not (slot in turn.former and slot in turn.kids.live)]
        late.sort(key=lambda slot: (slot in turn.kids.live, has_node(turn, slot), -slot))
        replaced = set(late[: len(able[free:])])
        workers = [slot for slot in workers if slot not in replaced] + able[free:][: len(replaced)]
    return tuple(sorted(workers))


def rank(turn: Turn, members: tuple[int, ...]) -> None:
    """An attempt has just begun with these: who was spare until now, and who is from now on."""
    listed, marked = parse_slots(turn.status.slots), parse_slots(turn.status.spares)
    others = [slot for slot in listed if slot not in members]
    taken = [slot for slot in members if slot in marked]
    if len(members) >= target(turn):
        others = _best(turn, others)[: wished(turn)]
        turn.change(slots=format_slots([*members, *others]), spares=format_slots(others))
    else:  # whoever is there beside them is a worker that is to join
        turn.change(spares="")
    attempt = turn.running
    if taken and attempt is not None:
        timing = turn.status.timing.model_copy(update={"spare_retry_at": None, "spare_tries": 0})
        turn.change(attempt=attempt.model_copy(update={"from_spares": format_slots(taken)}), timing=timing)
        message = f"{name_workers(turn, taken)} stood by as spare, and takes part from attempt {attempt.number} on"
        turn.tell("Normal", contract.REASON_SPARE_TAKEN, message)
        turn.say(message)


# --- Which there are --------------------------------------------------------------------------------------------------


def absorb(turn: Turn, workers: list[int], spares: list[int]) -> tuple[list[int], list[int]]:
    """While an attempt runs with fewer than are wished, whoever is up beside it is a worker that is to join: the rules
    of growth are about all of them. Workers and spares after that.
    """
    members = turn.members()
    free = target(turn) - len(members)
    if turn.running is None or not spares or free <= 0:
        return workers, spares
    others = _best(turn, [slot for slot in (*workers, *spares) if slot not in members])
    return sorted([*members, *others[:free]]), [slot for slot in others[free:] if has_node(turn, slot)]


def keep(turn: Turn, workers: Sequence[int], spares: Sequence[int]) -> list[int]:
    """Those that stay. One that cannot be had is tried again later; while a worker has no node, none is asked for."""
    lacking = turn.running is None and (
        len(workers) + len(ready(turn, spares)) < target(turn) or not all(has_node(turn, slot) for slot in workers)
    )
    in_vain = [slot for slot in spares if _is_in_vain(turn, slot)]
    if in_vain:
        _put_off(turn, in_vain)
    stay = [slot for slot in spares if slot not in in_vain and (has_node(turn, slot) or not lacking)]
    return sorted(_best(turn, stay)[: wished(turn)])


def _best(turn: Turn, slots: Sequence[int]) -> list[int]:
    """Those first that would be of use first."""
    marked = spare_slots(turn.status)
    return sorted(
        slots,
        key=lambda slot: (
            not is_synced(turn, slot),
            not has_node(turn, slot),
            slot not in turn.kids.live,
            slot in marked,
            slot,
        ),
    )


# --- Those that cannot be had, or are lost ----------------------------------------------------------------------------


def _is_in_vain(turn: Turn, slot: int) -> bool:
    """Whether its pod was refused, or has not found a node for a while."""
    pod = turn.kids.live.get(slot)
    if pod is None:
        return slot in turn.kids.absent and bool(turn.observed.refusals or turn.observed.unanswered)
    if pod.scheduled or pod.created_at is None or pod.reason not in (UNSCHEDULABLE, GATED):
        return False
    until = after(pod.created_at, gang.GANG_WAIT_S)
    turn.wake(until)
    return turn.now >= until


def _put_off(turn: Turn, slots: list[int]) -> None:
    timing = turn.status.timing
    tries = timing.spare_tries + 1
    retry_at = after(turn.now, gang.pause_s(turn.job.metadata.uid, tries))
    turn.change(timing=timing.model_copy(update={"spare_retry_at": retry_at, "spare_tries": tries}))
    pods = [pod for slot in slots if (pod := turn.kids.live.get(slot)) is not None]
    words = word_of(pods[0]) if pods else next(iter(turn.observed.refusals or ()), turn.observed.unanswered or "")
    turn.spares_why = f"{name_workers(turn, slots)} could not be had: {words}"
    turn.say(f"{turn.spares_why}; the next try comes at {retry_at:%H:%M:%S} UTC")


def lost(turn: Turn, pods: Sequence[PodView]) -> None:
    """Spares that ended, were taken away or are about to be: nothing is counted, and the first successor comes at
    once.
    """
    if not pods:
        return
    timing = turn.status.timing
    lived = all(pod.created_at is not None and elapsed(turn.now, pod.created_at) >= SETTLED_S for pod in pods)
    tries = 1 if lived else timing.spare_tries + 1
    pause_s = budget.back_off(tries)
    retry_at = after(turn.now, pause_s) if pause_s > 0 else None
    turn.change(timing=timing.model_copy(update={"spare_retry_at": retry_at, "spare_tries": tries}))
    turn.spares_why = f"{name_pods([pod.name for pod in pods])} was lost"
    turn.say(f"a spare was lost: {name_pods([pod.name for pod in pods])}")
