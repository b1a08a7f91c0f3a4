"""A rank that hangs, with real agents and ranks: the job comes back by itself where that is wished, and is left alone,
but told of, where it is not.
"""

from __future__ import annotations

import pytest

from support.scenario import Stage
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_api.v1alpha1 import Hang, TrainJob

pytestmark = pytest.mark.slow

STEPS = """
import os, signal, sys, time, trainjob
notes, context = sys.argv[1], trainjob.get_context()
found = trainjob.get_checkpoint()
def load_batch():
    while not os.path.exists(os.path.join(notes, "go")):
        pass
for step in range(found.to_dict()["step"] + 1 if found else 0, 6):
    if step == 3 and context.rank == 1 and (context.get_attempt() == 1 or os.path.exists(os.path.join(notes, "always"))):
        load_batch()
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
"""


def job(stage: Stage, script: str = STEPS, **hang: object) -> TrainJob:
    path = stage.root / "steps.py"
    path.write_text(script)
    made = stage.job(script=path)
    return made.model_copy(update={"spec": made.spec.model_copy(update={"hang": Hang(**hang)})})  # type: ignore[arg-type]


def test_with_restart_an_endless_data_loader_costs_one_failure_and_no_step(stage: Stage) -> None:
    told = stage.run(job(stage, action="Restart", after_seconds=6))
    assert told.status.holds("Complete") and told.attempts == 2, told.text()
    failure, hang = told.status.last_failure, told.status.hang
    assert failure is not None and hang is not None and told.status.failures.counted == 1, told.text()
    assert (failure.reason, failure.rank) == (contract.REASON_HANG, 1), told.text()
    assert "load_batch" in failure.message and "Look at rank 1." in failure.message and hang.ranks == [1], told.text()
    assert [entry.end_cause for entry in told.status.history] == [contract.REASON_HANG, contract.REASON_COMPLETED]
    assert told.status.progress.position == 6, told.text()


def test_by_default_it_is_told_and_goes_on_when_it_can(stage: Stage) -> None:
    def listen(event: LocalEvent) -> None:
        if event.job is not None and event.job.status.hang is not None:
            (stage.notes / "go").touch()

    told = stage.run(job(stage, after_seconds=6), listen)
    assert told.status.holds("Complete") and told.attempts == 1, told.text()
    assert told.status.failures.counted == 0 and told.status.hang is not None, told.text()
    assert any("rank 0 waits in report" in event.text for event in told.events), told.text()


def test_with_restart_a_stopped_rank_is_replaced_without_waiting_for_the_limit(stage: Stage) -> None:
    stops = STEPS.replace("        load_batch()\n", "        os.kill(os.getpid(), signal.SIGSTOP)\n")
    told = stage.run(job(stage, stops, action="Restart", after_seconds=3600))
    failure = told.status.last_failure
    assert told.status.holds("Complete") and failure is not None, told.text()
    assert failure.rank == 1 and "is stopped" in failure.message, told.text()
