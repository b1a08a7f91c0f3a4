"""Which pods may exist: slots are listed in status before their pods are created, and are never used twice.

Called by the rules in `decide.py`. Who takes part in the next attempt is `start.py`'s; what becomes of pods whose slot
is listed no more, `pod_actions.py`'s.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core import make
from trainjob_operator.core.answers import Answer, Hold
from trainjob_operator.core.children import is_announced
from trainjob_operator.core.ends import budget
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.silence import find_lost
from trainjob_operator.core.pods.naming import format_slots, parse_slots, pod_name
from trainjob_operator.core.size import gang
from trainjob_operator.core.size.edits import drop_outdated
from trainjob_operator.core.size.least import least, wished
from trainjob_operator.core.size.pauses import backs_off_until, retry_in
from trainjob_operator.core.turn import Turn


def settle_slots(turn: Turn) -> Answer:
    """Drop slots whose pod is gone for good, and take new numbers up to the wished size."""
    if turn.is_suspended:
        turn.change(slots="")
        return None
    kept = _kept(turn)
    waits, backs_off = gang.waits_until(turn), backs_off_until(turn)
    wanted = _wanted(turn, kept, waits is not None)
    if wanted > 0 and turn.blocked is None and backs_off is None:
        kept += take_slots(turn, wanted)
        if waits is None:
            turn.change(timing=turn.status.timing.model_copy(update={"gang_retry_at": None}))
    turn.change(slots=format_slots(kept))
    if waits is not None and len(kept) < wished(turn):
        return gang.hold(waits)
    if wanted > 0 and backs_off is not None:
        return Hold(why=f"new workers come from {backs_off:%H:%M:%S} UTC on", until=backs_off)
    return None


def _wanted(turn: Turn, kept: list[int], waits: bool) -> int:
    """How many new workers there are to be."""
    if make.is_plain(turn.make):
        return 0  # a group without agents begins when it is complete, and joins nobody
    if turn.status.verdict is not None:
        return 1 - len(kept)  # one worker looks whether the job is complete
    # While there is no room to grow, a lost worker of what goes on is replaced all the same.
    return (least(turn) if waits and kept else 0 if waits else wished(turn)) - len(kept)


def _kept(turn: Turn) -> list[int]:
    """Listed slots that stay. A slot without a pod stays if no attempt ever counted on it; it is created again by
    its name. Members stay as long as their attempt runs: what became of a lost one is still to be told.
    """
    members = set(turn.members())
    listed = parse_slots(turn.status.slots)
    kept = [
        slot
        for slot in listed
        if slot in turn.kids.live or slot in members or (slot in turn.kids.absent and slot not in turn.former)
    ]
    if turn.blocked is not None:
        return kept
    kept = drop_outdated(turn, kept)
    return sorted(
        sorted(kept, key=lambda slot: (slot not in members, slot not in turn.kids.live, slot))[
            : max(wished(turn), len(members))
        ]
    )


def take_slots(turn: Turn, count: int) -> list[int]:
    """New numbers, above every pod that bears the job's label, whoever made it."""
    first = max(
        turn.status.next_slot,
        turn.kids.highest + 1,
        max(turn.kids.listed, default=-1) + 1,
        max(turn.former, default=-1) + 1,
    )
    turn.change(next_slot=first + count)
    return list(range(first, first + count))


# --- Slots that are given up ----------------------------------------------------------------------------------------


def replace_spares(turn: Turn) -> None:
    """While an attempt ran, a pod beside it ended (a worker that was to join): replaced with back-off, not counted."""
    if not turn.was_running or not (set(turn.kids.ended) - set(turn.former)) or turn.running is None:
        return
    _rest(turn)


def replace_lost(turn: Turn) -> None:
    """Workers that nobody hears and that are not there for another witness either: given up, unless a running attempt
    still counts on them.

    What is left of such a pod stays Terminating until its node is back or removed; a new slot does not wait for it, and
    whatever wakes up there is told to leave.
    """
    if turn.is_suspended or turn.blocked is not None:
        return
    lost_workers = {slot: lost for slot, lost in find_lost(turn).items() if slot not in turn.members()}
    if lost_workers and turn.just_ended is None:
        _rest(turn)
    for slot, lost in lost_workers.items():
        _give_up(turn, slot)
        if turn.just_ended is None:  # else the incident itself has been told
            turn.tell("Warning", contract.REASON_WORKER_UNREACHABLE, f"{lost.sentence}: its pod is replaced")
        turn.say(f"{lost.sentence}: its pod is replaced")


def replace_announced(turn: Turn) -> None:
    """Workers that stand and are to be taken away, as Kubernetes says: given up before that, unless a running attempt
    still counts on them, or they alone hold what was trained.
    """
    if turn.is_suspended or turn.blocked is not None or gang.holds_the_only_checkpoints(turn):
        return
    listed, members = parse_slots(turn.status.slots), turn.members()
    going = [
        pod for slot, pod in turn.kids.live.items() if slot in listed and slot not in members and is_announced(pod)
    ]
    if going and turn.just_ended is None:
        _rest(turn)
    for pod in going:
        _give_up(turn, pod.slot)
        message = (
            f"{pod.name} is about to be taken away ({pod.disruption or pod.notice or 'disruption'}): it is replaced"
        )
        turn.tell("Normal", contract.REASON_PREEMPTED, message)
        turn.say(message)


def _give_up(turn: Turn, slot: int) -> None:
    turn.change(slots=format_slots(other for other in parse_slots(turn.status.slots) if other != slot))


def _rest(turn: Turn) -> None:
    """Before new workers, longer each time."""
    books = turn.status.failures
    early = books.early_in_row + 1
    retry_in(turn, budget.back_off(early))
    turn.change(failures=books.model_copy(update={"early_in_row": early}))


def replace(turn: Turn, slot: int, incident: Incident) -> None:
    """Give up a worker that broke again and again, or is the cause itself; its successor keeps away from the node."""
    _give_up(turn, slot)
    away = f", away from {incident.node}" if incident.node else ""
    why = f"is apart ({incident.reason})" if incident.replaces else f"broke {budget.STRIKES} times without progress"
    message = f"{pod_name(turn.job.metadata.name, slot)} {why}: its pod is replaced{away}"
    turn.tell("Warning", "WorkerReplaced", message)
    turn.say(message)
