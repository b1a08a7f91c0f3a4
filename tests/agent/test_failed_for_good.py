"""The end of a job that failed for good: what rank 0 was to validate is given up with a word."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.agent_rig import Rig
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = (
    "import os, trainjob\nfrom trainjob import Checkpoint\nos.makedirs('c', exist_ok=True)\n"
    "open('c/a', 'w').write('x')\ntrainjob.report({'a': 1}, checkpoint=Checkpoint.from_directory('c'))\n"
    "raise ValueError('gone')\n"
)


@pytest.mark.parametrize(
    ("code", "status"),
    [(contract.EXIT_JOB_FAILED, validations.FAILED), (contract.EXIT_REMOVED, validations.PENDING)],
    ids=["the job failed", "the worker is not needed"],
)
def test_a_validation_that_is_open_when_the_job_fails_is_given_up(tmp_path: Path, code: int, status: str) -> None:
    with Rig(tmp_path, script=SCRIPT, agents=1, storage=tmp_path / "stored") as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0) and not rig.report(0)["uploads"], "raised, and stored")
        store = open_store(str(tmp_path / "stored"))
        for n, known in ((1, validations.PENDING), (2, validations.VALIDATED)):
            validations.write(store, CheckpointId(1, 1, n), Validation(known))
        rig.exit(code)
        assert rig.exit_code(0) == code
        found = {str(id_): each.status for id_, each in validations.read(store, 1).items()}
        assert found == {"1-1-1": status, "1-1-2": validations.VALIDATED}
        told = "to be validated when the job failed, and counted as failed: 1-1-1" in rig.text(0)
        assert told is (status == validations.FAILED)


def test_where_the_agent_of_rank_0_is_lost_another_gives_it_up(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SCRIPT, agents=2, storage=tmp_path / "stored") as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1) and not rig.report(0)["uploads"], "raised, and stored")
        store = open_store(str(tmp_path / "stored"))
        validations.write(store, CheckpointId(1, 1, 1), Validation(validations.PENDING))
        rig.agents[0].process.kill()
        assert rig.exit_code(0) == -signal.SIGKILL
        rig.coordinator.tell(1, do=contract.DO_EXIT, exit_code=contract.EXIT_JOB_FAILED)
        assert rig.exit_code(1) == contract.EXIT_JOB_FAILED
        assert [found.status for found in validations.read(store, 1).values()] == [validations.FAILED]
        assert "counted as failed: 1-1-1" in rig.text(1)
