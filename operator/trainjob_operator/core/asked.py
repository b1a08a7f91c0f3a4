"""Where the ranks are, when a person asks: the annotation is the question, rank 0's agent asks all ranks, and status
keeps the newest answer.

Called by `instruct.py` (what rank 0's agent is to find out) and by `decide.py` (its answer). It changes nothing of the
training.
"""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.v1alpha1 import StacksView, TrainJob
from trainjob_operator.core.turn import Turn


def unanswered(job: TrainJob) -> str | None:
    """The question that stands; None: there is none, or it has its answer."""
    told = (job.metadata.annotations.get(contract.ANNOTATION_STACKS) or "")[: contract.STACKS_REQUEST_LIMIT]
    asked = "".join(c for c in told if c.isprintable())  # of the agent's words nothing else arrives either
    answered = job.status.stacks.request if job.status.stacks is not None else None
    return asked if asked and asked != answered else None


def note(turn: Turn) -> None:
    """The answer, once: what rank 0's agent says of another question is passed over."""
    asked, word, running = unanswered(turn.job), turn.leader_word(), turn.running
    if asked is None or running is None or word is None or word.stacks is None or word.stacks["request"] != asked:
        return
    turn.change(stacks=StacksView(request=asked, attempt=running.number, stacks=word.stacks["stacks"]))
    turn.say("it was asked where the ranks are: the answer is in status")
