"""get_all_reported_checkpoints(): what the ranks see agrees with Result and the catalogue; it waits for what is on
its way.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.bare_site import bare_site
from trainjob.agent.committing.commits import Commits
from trainjob.launch.outcome.result import Result

pytestmark = pytest.mark.slow

HEAD = """
import json, os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
def save(i, **options):
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, f"part-{c.rank}").write_text(str(i))
    trainjob.report({"loss": 1 / i, "eval": {"acc": i}}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=i, **options)
def tell(**options):
    found = trainjob.get_all_reported_checkpoints(**options)
    rows = [[one.checkpoint.id, one.checkpoint.step, one.metrics, sorted(one.checkpoint.files())] for one in found]
    print("told", json.dumps(rows), flush=True)
"""


def told(rig: Rig, slot: int) -> list[Any]:
    return [json.loads(line.split("told ", 1)[1]) for line in rig.text(slot).splitlines() if "| told [" in line]


def test_the_list_agrees_with_result_and_waits_for_what_is_on_its_way(tmp_path: Path) -> None:
    script = HEAD + "tell()\nfor i in range(1, 4): save(i)\nif c.rank == 1: tell()\n"
    with Rig(tmp_path, script=script, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        assert told(rig, 0) == [[]]
        files = ["part-0", "part-1"]
        assert told(rig, 1) == [[], [[f"1-1-{i}", i, {"loss": 1 / i, "eval": {"acc": i}}, files] for i in (1, 2, 3)]]
    result = Result.from_path(tmp_path / "store")
    assert [
        [checkpoint.id, checkpoint.step, metrics, sorted(checkpoint.files())]
        for checkpoint, metrics in result.best_checkpoints
    ] == told(rig, 1)[1]


def test_storage_that_is_away_ends_the_wait_when_the_time_is_over(tmp_path: Path) -> None:
    script = HEAD + "while not os.path.exists('go'): time.sleep(0.02)\nsave(1)\ntell(timeout_s=0.2)\n"
    store = tmp_path / "store"
    with Rig(tmp_path, script=script, storage=store, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0), "running")
        (store / "checkpoints").write_text("in the way")
        (rig.work / "go").touch()
        rig.wait(lambda: told(rig, 0) == [[]], "the time is over")
        (store / "checkpoints").unlink()
        rig.wait(rig.completed, "stored once it is back")


def test_without_storage_the_newest_is_told(tmp_path: Path) -> None:
    script = HEAD + "save(1)\nsave(2)\ntell()\n"
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        assert told(rig, 0) == [[["1-1-2", 2, {"loss": 0.5, "eval": {"acc": 2}}, ["part-0"]]]]


def test_a_validation_that_was_told_over_is_over_for_the_list_and_for_retention() -> None:
    """Its end may be what storage refused. One that is taken up again is open again."""
    asked: dict[str, list[Any]] = {"reported": [], "retain": []}

    class Storage:
        async def call(self, op: str, request: Any, *_: Any) -> dict[str, Any]:
            asked[op].append(request.get("over"))
            return {"checkpoints": [], "count": 1}

    async def story() -> None:
        made = Commits(bare_site(Storage(), None), lambda index, word: None, 1, 1, ())
        made.validated("1-1-1", False)
        await made.reported(0)
        made.validated("1-1-1", True)
        await made.until_drained(10)
        await made.reported(0)
        made.validated("1-1-1", False)
        await made.reported(0)
        made.close()

    asyncio.run(story())
    assert asked == {"reported": [[], ["1-1-1"], []], "retain": [["1-1-1"]]}


def test_validations_of_checkpoints_that_retention_removed_are_forgotten() -> None:
    asked: list[list[str]] = []

    class Storage:
        async def call(self, op: str, request: Any, *_: Any) -> dict[str, Any]:
            asked.append(request["over"])
            return {"deleted": request["over"][:-1], "count": 1}

    async def story() -> None:
        made = Commits(bare_site(Storage(), None), lambda index, word: None, 1, 1, ())
        for number in range(1, 5):
            made.validated(f"1-1-{number}", True)
            await made.until_drained(10)
        made.close()

    asyncio.run(story())
    assert asked == [["1-1-1"], ["1-1-1", "1-1-2"], ["1-1-2", "1-1-3"], ["1-1-3", "1-1-4"]]


def test_what_an_attempt_left_to_be_validated_is_given_up_by_one_whose_trainer_validates_nothing(
    tmp_path: Path,
) -> None:
    """The first attempt is a trainer's with a validation_config, the second one's has none."""
    script = (
        HEAD
        + """
from trainjob.checkpoint.reading import validations
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch.worker import install_validation
from trainjob.launch.handover.validation import ValidationConfig

config = ValidationConfig(fn=len) if c.get_attempt() == 1 else None
finish = install_validation(os.devnull, config)
if config is not None:
    save(1)
    store = open_store(c.storage)
    validations.write(store, CheckpointId(1, 1, 1), validations.Validation(validations.PENDING, {}, {}))
    raise OSError("the node goes away")
finish()
print("status", trainjob.get_all_reported_checkpoints()[0].status.value, flush=True)
"""
    )
    with Rig(tmp_path, script=script, agents=1, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, attempt=1), "ended")
        rig.run(2)
        rig.wait(rig.completed, "completed")
        rig.wait_text(0, "status VALIDATION_FAILED")
        assert rig.text(0).count("checkpoint 1-1-1 was to be validated, and its attempt ended before that") == 1
