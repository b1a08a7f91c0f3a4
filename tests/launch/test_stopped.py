"""What is shown of a job that was stopped: what its agents stored after its attempt had ended counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from support.trainjobs import document
from trainjob.launch.local.drive import as_stored_at_the_end, completed
from trainjob_api.v1alpha1 import TrainJob, TrainJobStatus
from trainjob_operator.core.model import AgentView

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def status(checkpoint: str | None, position: int) -> TrainJobStatus:
    latest = {"latest": {"id": checkpoint, "level": "Durable"}} if checkpoint else {}
    return TrainJobStatus.model_validate({"checkpoint": latest, "progress": {"position": position}})


def view(**told: Any) -> AgentView:
    return AgentView(slot=0, pod_uid="u", boot=1, heard_at=NOW, address="", **told)


def test_what_storage_did_not_take_until_the_end_stays_in_the_status() -> None:
    """Without an attempt the condition goes; who looks at a stopped job asks for it."""
    attempt = {"number": 2, "state": "Ended", "cause": "Started", "members": "0", "workers": 1, "worldSize": 1}
    stopped = TrainJobStatus.model_validate({"attempt": {**attempt, "startedAt": NOW}})
    found = as_stored_at_the_end(stopped, [view(attempt=2, checkpoint_trouble="the disk is full")])
    said = found.condition("Degraded")
    assert said is not None and (said.status, said.message) == ("True", "the disk is full")
    earlier = as_stored_at_the_end(stopped, [view(attempt=1, checkpoint_trouble="the disk is full")])
    assert earlier.condition("Degraded") is None, "of an attempt before: storage took what came later"


def test_the_checkpoint_that_was_stored_last_is_the_newest() -> None:
    told = view(latest={"id": "1-1-9", "step": 9, "uri": None, "time": None, "bytes": 4}, checkpoint_count=3)
    found = as_stored_at_the_end(status("1-1-7", 8), [view(), told])
    assert found.checkpoint.latest is not None and found.checkpoint.latest.id == "1-1-9"
    assert (found.checkpoint.count, found.progress.position) == (3, 8)
    last = {"position": 9, "step": 9, "total_steps": 20, "epoch": None, "metrics": {"loss": 0.5}, "time": 1.0}
    found = as_stored_at_the_end(status("1-1-7", 8), [view(progress=last)])
    assert (found.progress.position, found.progress.step, found.progress.metrics) == (9, 9, {"loss": 0.5})
    older = as_stored_at_the_end(status("1-2-1", 5), [told])
    assert older == status("1-2-1", 5), "a word of an older attempt says nothing new"


def test_a_job_that_was_stopped_and_had_completed_is_complete() -> None:
    attempt = {"number": 2, "state": "Ended", "cause": "Started", "members": "0", "workers": 1, "worldSize": 1}
    stopped = {"attempt": {**attempt, "run": 1, "startedAt": NOW}, "slots": "0", "phase": "Suspended"}
    job = TrainJob.model_validate(document({"spec.suspend": True, "status": stopped}))
    found = completed(job, NOW).status
    assert found.holds("Complete") and not found.holds("Suspended") and found.phase == "Complete"
