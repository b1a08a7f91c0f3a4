"""The word for one agent: what the committed job says that its pod is to do.

Called by the coordinator for each sync. It reads status only, never what a turn is about to write, so that nobody hears
of an attempt that is not committed. The coordinator has checked the pod's UID before, and adds the secret afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainjob_api import contract
from trainjob_api.contract import Instruction
from trainjob_api.v1alpha1 import Attempt, TrainJob, TrainJobStatus
from trainjob_operator.core import asked, boundaries, forks, progress
from trainjob_operator.core.ends import hangs
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.model import AgentView, InstructionFor
from trainjob_operator.core.moments import aware
from trainjob_operator.core.pods.naming import parse_slots, pod_name, positions, spare_slots
from trainjob_operator.core.rank_places import ranks_each


def instruct(job: TrainJob, agents: Mapping[int, AgentView], slot: int, pod_uid: str) -> InstructionFor:
    """What the agent of `slot` is to do now, and why. `agents` gives the leader's address."""
    status = job.status
    if status.finished:
        return _exit_of_finished(status)
    if job.metadata.deletion_timestamp is not None:
        return _exit(contract.EXIT_REMOVED, f"TrainJob {job.metadata.name} is being deleted", _grace(status))
    if slot not in positions(status.slots):
        return _exit(
            contract.EXIT_REMOVED, f"slot {slot} is not part of TrainJob {job.metadata.name} any more", _grace(status)
        )
    attempt = status.attempt
    if attempt is None:
        return _hold(status), "the first attempt has not begun: not all workers are there yet"
    if attempt.state != "Running" and status.verdict is not None:
        word = Instruction(do=contract.DO_CHECK, attempt=attempt.number)
        before = "the job fails" if status.verdict.reason else "the next attempt begins"
        return word, f"before {before}: had training completed in attempt {attempt.number}?"
    members = positions(attempt.members)
    if attempt.state != "Running":
        why = f"attempt {attempt.number} has ended ({attempt.end_cause}), the next has not begun"
        return _hold(status) if slot in members else _stand_by(status, members, agents), why
    if slot not in members:
        what = "a spare, no" if slot in spare_slots(status) else "not a"
        return _stand_by(status, members, agents), f"slot {slot} is {what} member of attempt {attempt.number}"
    known = agents.get(slot)
    if known is not None and known.pod_uid != pod_uid:
        return Instruction(do=contract.DO_WAIT), f"slot {slot} was last heard from another pod"
    return _run(attempt, members, slot, agents, job)


def _run(
    attempt: Attempt,
    members: Mapping[int, int],
    slot: int,
    agents: Mapping[int, AgentView],
    job: TrainJob,
) -> InstructionFor:
    first = next(iter(members))
    leader = agents.get(first)
    if leader is None or not leader.address:
        # After a restart of the operator the leader may not have synced yet; what runs goes on.
        return Instruction(
            do=contract.DO_WAIT
        ), f"the address of attempt {attempt.number}'s leader, slot {first}, is not known yet"
    word = Instruction(
        do=contract.DO_RUN,
        attempt=attempt.number,
        index=members[slot],
        workers=len(members),
        processes=ranks_each(attempt),
        leader=leader.address,
    )
    if any(entry.end_cause == contract.REASON_OOM for entry in job.status.history):
        word["spare_memory"] = True
    boundary, known = job.status.boundary, agents.get(slot)
    if slot == first:
        limit = hangs.after_s(job.spec.hang)
        if boundary is not None:
            word["boundary"] = boundaries.token(boundary)
            leaving = [slot for slot in parse_slots(boundary.leaving) if slot in members][: contract.LEAVING_LIMIT]
            if leaving:
                word["leaving"] = {pod_name(job.metadata.name, slot): members[slot] for slot in leaving}
            if leaving and boundary.gone_by is not None:
                word["gone_at"] = aware(boundary.gone_by).timestamp()
        if limit is not None:
            word["hang_after_s"] = limit
        question = asked.unanswered(job)
        if question is not None:
            word["stacks"] = question
        if job.spec.tracking:
            word["tracking"] = list(job.spec.tracking)
        word["reached"] = progress.reached_before(job.status)
    grace_s = boundary.grace_seconds if boundary is not None else None
    if grace_s is not None and known is not None and known.draining:
        word["gone_s"], word["drain_s"] = grace_s, max(0.0, grace_s - contract.DRAIN_RESERVE_S)
    return word, f"member {word['index']} of {len(members)} in attempt {attempt.number}"


def _hold(status: TrainJobStatus) -> Instruction:
    return Instruction(do=contract.DO_HOLD, grace_s=_grace(status))


def _stand_by(status: TrainJobStatus, members: Iterable[int], agents: Mapping[int, AgentView]) -> Instruction:
    """Of a worker that was not in the newest attempt: it cannot have learned what the members have."""
    word, learned = _hold(status), forks.passed_on(members, agents)
    if learned:
        word["learned"] = learned
    return word


def _grace(status: TrainJobStatus) -> float:
    attempt = status.attempt
    if attempt is None:
        return 0.0
    stopped_by = attempt.end_cause if attempt.state == "Ended" else attempt.cause
    return cause_of(stopped_by).grace_s


def _exit(code: int, why: str, grace_s: float = 0.0) -> InstructionFor:
    return Instruction(do=contract.DO_EXIT, exit_code=code, grace_s=grace_s, reason=why), why


def _exit_of_finished(status: TrainJobStatus) -> InstructionFor:
    failed = status.held("Failed")
    if failed is not None:
        return _exit(contract.EXIT_JOB_FAILED, f"the job failed: {failed.reason}: {failed.message}")
    return _exit(contract.EXIT_OK, "the job is complete")
