"""Edits of what pods are made of: they take effect at the next start, and a start is never mixed.

Called by the rules in `decide.py`, and by `slots.py`. What runs goes on as it was made. Whichever way the next start
comes about, pods of another make are replaced before it, all at once: a lost worker cannot be made anew from a spec
that is no more, and workers of two specs may not even store at one place.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainjob_api import contract
from trainjob_operator.core import boundaries, make
from trainjob_operator.core.answers import Answer
from trainjob_operator.core.children import made_of
from trainjob_operator.core.lifecycle import end_attempt, name_workers
from trainjob_operator.core.turn import Turn


def take_edits(turn: Turn) -> Answer:
    """End an attempt that an edit leaves no way to go on."""
    running = turn.running
    if running is None or running.make in (None, turn.make) or turn.blocked is not None or turn.held:
        return None
    if make.template_of(running.make or "") != make.template_of(turn.make):
        # Only while it is suspended a job lets its template be changed: it was, between two looks.
        message = "the template was changed: the job was suspended and resumed, and starts again with new pods"
        return boundaries.hold(turn, contract.REASON_SUSPENDED) or _end(turn, contract.REASON_SUSPENDED, message)
    if turn.kids.absent & (set(turn.members()) - turn.succeeded()):
        message = "the spec was edited while the pods of this start were made: all are made anew"
        return _end(turn, contract.REASON_SPEC_CHANGED, message)
    return None


def drop_outdated(turn: Turn, slots: list[int]) -> list[int]:
    """Those of the slots that are members, have no pod, or one of the present make; the others are given up."""
    members = turn.members()
    old = outdated(turn, [slot for slot in slots if slot not in members])
    if old:
        strange = all(make.is_strange(turn.kids.live[slot].make) for slot in old)
        why = "the coordinator's CA is another one now" if strange else "the spec was edited"
        message = f"{why}: new pods take the place of {name_workers(turn, old)}"
        turn.tell("Normal", contract.REASON_SPEC_CHANGED, message)
        turn.say(message)
    given_up = set(old)
    return [slot for slot in slots if slot not in given_up]


def outdated(turn: Turn, slots: Sequence[int]) -> list[int]:
    """Those that the next start would replace: their pods live, and are of another make than pods have now."""
    pods = {slot: pod for slot in slots if (pod := turn.kids.live.get(slot)) is not None}
    return [slot for slot, pod in pods.items() if made_of(turn.job.status, pod, turn.make) != turn.make]


def _end(turn: Turn, cause: str, message: str) -> Answer:
    end_attempt(turn, cause)
    turn.tell("Normal", contract.REASON_SPEC_CHANGED, message)
    turn.say(message)
    return None
