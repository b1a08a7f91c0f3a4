"""What was acknowledged is stored and committed when agents are told to end: also while only others move bytes, and by an
agent that was started anew with its container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.agent_rig import Rig
from support.away import bring_back, take_away
from support.virtual_time import run_virtual
from trainjob.agent import finishing
from trainjob.agent.committing.uploads import Uploads
from trainjob.agent.standstill import Standstill

SAVE = """
import os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
def save(step):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, f"part-{c.rank}").write_text(f"{step}")
        trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step)
save(1)
while not os.path.exists("go"):
    time.sleep(0.02)
save(2)
open(f"acknowledged-{c.rank}", "w").close()
time.sleep(600)
"""


def manifest(store: Path, id_: str) -> dict[str, Any] | None:
    path = store / "checkpoints" / id_ / ".trainjob/manifest.json"
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "how"), [(1, "exit"), (2, "exit"), (2, "run and exit"), (1, "SIGTERM"), (1, "launcher")]
)
def test_an_agent_that_was_started_anew_stores_what_the_one_before_had_acknowledged(
    tmp_path: Path, agents: int, how: str
) -> None:
    """All containers are killed after report() has returned and before storage had it; then the budget is used up."""
    store = tmp_path / "store"
    with Rig(tmp_path, script=SAVE, agents=agents, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: manifest(store, "1-1-1"), "the first is committed")
        take_away(store)
        (rig.work / "go").touch()
        for rank in range(agents):
            rig.wait(lambda number=rank: (rig.work / f"acknowledged-{number}").exists(), "STAGED is acknowledged")
        for slot in range(agents):
            rig.agents[slot].process.kill()
            rig.exit_code(slot)
            rig.coordinator.forget(slot)
            rig.coordinator.instructions.pop(slot, None)
        bring_back(store)
        for slot in range(agents):
            rig.start(slot)
        rig.wait(lambda: len(rig.coordinator.reports) == agents, "they are back")
        if how == "SIGTERM":
            rig.agents[0].process.terminate()
        elif how == "launcher":
            os.close(rig.agents[0].parent)
            rig.agents[0].parent = -1
        else:
            if how == "run and exit":
                rig.run(2, list(range(agents)))
            rig.exit()
        for slot in range(agents):
            rig.exit_code(slot)
    found = manifest(store, "1-1-2")
    assert found is not None, "acknowledged, staged whole, storage healthy"
    assert {e["path"] for e in found["files"]} >= {f"part-{rank}" for rank in range(agents)}


def test_uploads_are_given_up_once_nothing_has_moved_for_a_while() -> None:
    moved = [0]

    async def scene() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        for second in (20, 45, 60):
            loop.call_later(second, lambda: moved.append(len(moved)))
        late = loop.create_future()
        loop.call_later(3600, late.set_result, None)  # else who waits for ever does so in this test
        done = await finishing.while_it_moves(late, lambda: len(moved), 30)
        return done, loop.time()

    done, at = run_virtual(scene())
    assert not done and 90 <= at <= 90 + 2 * finishing.LOOK_S


def test_a_second_wait_goes_on_from_the_first() -> None:
    """SIGTERM comes as long after the word to exit as uploads may stand still: nobody waits twice for a full disk."""

    async def scene() -> list[float]:
        loop, still, ends = asyncio.get_running_loop(), Standstill(), []
        for timeout_s in (29.0, None):
            working = finishing.while_it_moves(asyncio.sleep(3600), lambda: 0, 30, still)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(working, timeout_s)
            ends.append(loop.time())
        return ends

    assert run_virtual(scene()) == [29.0, 30.0]


def test_work_that_ends_is_not_given_up() -> None:
    async def scene() -> bool:
        return await finishing.while_it_moves(asyncio.sleep(10), lambda: 0, 30)

    assert run_virtual(scene()) is True


def test_bytes_of_other_workers_are_movement_too() -> None:
    """Rank 0's agent has stored its own small share long ago."""
    uploads = Uploads(0.0)
    uploads.released(1.0, "1-1-1", {"id": "1-1-1"}, [0, 1])
    uploads.shared(2.0, 0, "1-1-1")
    attempt: Any = SimpleNamespace(leader=SimpleNamespace(commits=uploads))
    saving: Any = SimpleNamespace(moved=5)
    before = finishing.moved(attempt, saving)
    assert finishing.moved(attempt, saving) == before
    uploads.moved(20.0, 1, 1 << 20)
    assert finishing.moved(attempt, saving) != before
