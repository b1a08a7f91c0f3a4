"""Which pods may exist: slots are listed in status before their pods are created, and are never used twice.

Called by the rules in `decide.py`. Who takes part in the next attempt is `start.py`'s; which of them are spare workers,
`spares.py`'s; what becomes of pods whose slot is listed no more, `pod_actions.py`'s.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_operator.core import make
from trainjob_operator.core.answers import Answer, Hold
from trainjob_operator.core.children import is_announced
from trainjob_operator.core.ends import budget
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.silence import find_lost
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import aware
from trainjob_operator.core.pods.naming import format_slots, parse_slots, pod_name, spare_slots
from trainjob_operator.core.size import gang, spares
from trainjob_operator.core.size.edits import drop_outdated
from trainjob_operator.core.size.least import least, target
from trainjob_operator.core.size.pauses import backs_off_until, retry_in
from trainjob_operator.core.turn import Turn


def settle_slots(turn: Turn) -> Answer:
    """Drop slots whose pod is gone for good, and take new numbers up to the wished size."""
    if turn.is_suspended:
        turn.change(slots="", spares="")
        return None
    kept, standby = _kept(turn)
    waits, backs_off = gang.waits_until(turn), backs_off_until(turn)
    # Until an attempt takes them spares are marked as such; what they are about to fill is filled.
    have = len(kept) + (len(spares.ready(turn, standby)) if turn.running is None else 0)
    wanted = _wanted(turn, have, waits is not None)
    if wanted > 0 and turn.blocked is None and backs_off is None:
        kept += take_slots(turn, wanted)
        if waits is None:
            turn.change(timing=turn.status.timing.model_copy(update={"gang_retry_at": None}))
    turn.change(slots=format_slots([*kept, *standby]), spares=format_slots(standby))
    if waits is not None and max(have, len(kept)) < target(turn):
        return gang.hold(waits)
    if wanted > 0 and backs_off is not None:
        return Hold(why=f"new workers come from {backs_off:%H:%M:%S} UTC on", until=backs_off)
    return None


def _wanted(turn: Turn, have: int, waits: bool) -> int:
    """How many new workers there are to be."""
    if make.is_plain(turn.make):
        return 0  # a group without agents begins when it is complete, and joins nobody
    if turn.status.verdict is not None:
        return 1 - have  # one worker looks whether the job is complete
    # While there is no room to grow, a lost worker of what goes on is replaced all the same.
    return (least(turn) if waits and have else 0 if waits else target(turn)) - have


def _kept(turn: Turn) -> tuple[list[int], list[int]]:
    """Listed slots that stay: workers, and spares. A slot without a pod stays if no attempt ever counted on it; it is
    created again by its name. Members stay as long as their attempt runs: what became of a lost one is still to be
    told.
    """
    members = set(turn.members())
    listed = parse_slots(turn.status.slots)
    kept = [
        slot
        for slot in listed
        if slot in turn.kids.live or slot in members or (slot in turn.kids.absent and slot not in turn.former)
    ]
    marked = spare_slots(turn.status)
    if turn.blocked is None:
        kept = drop_outdated(turn, kept)
    workers, standby = [slot for slot in kept if slot not in marked], [slot for slot in kept if slot in marked]
    if turn.blocked is not None:
        return workers, standby
    workers = sorted(
        sorted(workers, key=lambda slot: (slot not in members, slot not in turn.kids.live, slot))[
            : max(target(turn), len(members))
        ]
    )
    workers, standby = spares.absorb(turn, workers, standby)
    return workers, spares.keep(turn, workers, standby)


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


def make_spares(turn: Turn) -> None:
    """New spares, once all workers train: they never take a node from a worker of their own job. The last of the rules
    that list slots, so that one that was just taken has its successor in the same write.
    """
    wished, have = spares.wished(turn), spare_slots(turn.status)
    if turn.running is None or len(turn.members()) < turn.spec.workers or turn.blocked is not None or turn.is_broken:
        return
    timing = turn.status.timing
    if turn.status.observed_generation not in (None, turn.job.metadata.generation):
        # Whoever edits the job does not want to wait for what earlier ones had to wait for.
        timing = timing.model_copy(update={"spare_retry_at": None, "spare_tries": 0})
    if len(have) < wished and timing.spare_retry_at is not None and turn.now < aware(timing.spare_retry_at):
        turn.wake(timing.spare_retry_at)
    elif len(have) < wished:
        more = take_slots(turn, wished - len(have))
        listed = parse_slots(turn.status.slots)
        turn.change(slots=format_slots([*listed, *more]), spares=format_slots([*have, *more]))
        timing = timing.model_copy(update={"spare_retry_at": None})
    turn.change(timing=timing)


# --- Slots that are given up ----------------------------------------------------------------------------------------


def replace_ended(turn: Turn) -> None:
    """Pods that ended or went beside the attempt: of a worker that was to join while one ran, replaced with back-off,
    not counted; of a spare, at any time, with a back-off that no worker waits for.
    """
    marked, kids = spare_slots(turn.status), turn.kids
    spares.lost(turn, [pod for slot, pod in (*kids.ended.items(), *kids.leaving.items()) if slot in marked])
    if turn.was_running and turn.running is not None and set(kids.ended) - set(turn.former) - set(marked):
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
    _rest_before_successors(turn, [lost.pod for lost in lost_workers.values()])
    for slot, lost in lost_workers.items():
        _give_up(turn, slot)
        if turn.just_ended is None:  # else the incident itself has been told
            turn.tell("Warning", contract.REASON_WORKER_UNREACHABLE, f"{lost.sentence}: its pod is replaced")
        turn.say(f"{lost.sentence}: its pod is replaced")


def replace_announced(turn: Turn) -> None:
    """Workers that stand and are to be taken away, as Kubernetes says: given up before that, unless a running attempt
    still counts on them, or they alone hold what was trained.
    """
    if turn.is_suspended or turn.blocked is not None:
        return
    # A spare holds nothing of what was trained.
    spare = gang.holds_the_only_checkpoints(turn)
    listed, members = spare_slots(turn.status) if spare else parse_slots(turn.status.slots), turn.members()
    going = [
        pod for slot, pod in turn.kids.live.items() if slot in listed and slot not in members and is_announced(pod)
    ]
    _rest_before_successors(turn, going)
    for pod in going:
        _give_up(turn, pod.slot)
        message = (
            f"{pod.name} is about to be taken away ({pod.disruption or pod.notice or 'disruption'}): it is replaced"
        )
        turn.tell("Normal", contract.REASON_PREEMPTED, message)
        turn.say(message)


def _give_up(turn: Turn, slot: int) -> None:
    turn.change(slots=format_slots(other for other in parse_slots(turn.status.slots) if other != slot))


def _rest_before_successors(turn: Turn, going: list[PodView]) -> None:
    """Of these pods, which are given up before they end."""
    marked = spare_slots(turn.status)
    spares.lost(turn, [pod for pod in going if pod.slot in marked])
    if turn.just_ended is None and any(pod.slot not in marked for pod in going):
        _rest(turn)


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
