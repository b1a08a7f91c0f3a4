"""The look for a run's end record keeps asking a storage that cannot be read, and comes to an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from support.agent_rig import Rig
from support.virtual_time import run_virtual
from trainjob.agent.control.look import PAUSES_S, Found, look
from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob_api import contract
from trainjob_api.last_word import SHOWN


class Refusing:
    """Answers as a storage child does, after so many refusals."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.calls = refusals, 0

    async def call(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        assert (op, fields) == ("ended", {"job_uid": "uid-1"})
        self.calls += 1
        if self.calls <= self.refusals:
            raise StorageError("unreadable", "access denied")
        return {"run": 2, "completed": True}


def ask(refusals: int) -> tuple[Found, int, list[str]]:
    storage, said = Refusing(refusals), list[str]()
    found = run_virtual(look(cast(StorageChild, storage), "uid-1", said.append))
    return found, storage.calls, said


def test_a_storage_that_answers_in_the_end() -> None:
    found, calls, said = ask(refusals=3)
    assert (found, calls) == (Found(2, True), 4) and len(said) == 1, "one trouble is said once"


def test_a_storage_that_cannot_be_read() -> None:
    found, calls, said = ask(refusals=10**9)
    assert not found.completed and calls == len(PAUSES_S) + 1 and sum(PAUSES_S) >= 60
    assert found.trouble is not None and "access denied" in found.trouble and said == [found.trouble]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["look", "join"])
def test_who_finds_that_the_run_is_complete_finds_how_far_it_came(tmp_path: Path, how: str) -> None:
    script = """
import pathlib, tempfile, trainjob
for step in (1, 2, 3):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "model").write_text(str(step))
        trainjob.report({"loss": 1 / step}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=10 * step)
"""
    with Rig(tmp_path, script=script, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(rig.completed, "complete")
        shown = {name: rig.report(0)[name] for name in SHOWN}
        progress, latest = shown["progress"], shown["latest"]
        assert (progress["position"], progress["step"], progress["metrics"]) == (3, 30, {"loss": 1 / 3})
        assert latest["id"] == "1-1-3" and shown["checkpoint_count"] == 3
        rig.wait(lambda: {name: rig.report(1)[name] for name in SHOWN} == shown, "the other one knows it too")
        for slot in (0, 1):
            rig.agents[slot].process.kill()
            rig.exit_code(slot)
            rig.coordinator.forget(slot)
        if how == "look":
            rig.start(1)
            rig.coordinator.tell(1, do=contract.DO_CHECK, attempt=1)
            slots = [1]
        else:
            slots = [0, 1]
            for slot in slots:
                rig.coordinator.instructions.pop(slot)
                rig.start(slot)
            rig.run(2, slots)
        for slot in slots:
            rig.wait(lambda number=slot: rig.report(number).get("completed"), "it finds the end record")
            assert {name: rig.report(slot)[name] for name in SHOWN} == shown
    if how == "join":
        assert "the job resumes from" not in rig.text(0) and "run 1 is complete: no rank is started" in rig.text(0)


def test_without_storage_there_is_nothing_to_be_found() -> None:
    assert run_virtual(look(None, "uid-1", print)) == Found(None, False)
