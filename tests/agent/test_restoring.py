"""Checkpoints come back through real agents: only what ranks ask for, from the nearest place, compared; from a path
and from a bucket.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.agent_rig import Rig
from support.reading import overwrite
from support.s3_faults import Faults
from trainjob.checkpoint.stores.opening import open_store
from trainjob_api import contract

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, pathlib, tempfile, time, trainjob
from trainjob.session import rank_state
c = trainjob.get_context()
states = {}
rank_state.register("place", lambda: {"rank": c.rank, "world": c.world_size}, lambda saved: states.update(saved.state))
def body(name, i): return f"{name} {i} ".encode() * 20_000
def save(i):
    with tempfile.TemporaryDirectory() as d:
        names = [f"part-{c.rank}"] + (["shared/all"] if c.rank == 0 else [])
        for name in names:
            path = pathlib.Path(d, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body(name, i))
        trainjob.report({"loss": 1 / i}, checkpoint=trainjob.Checkpoint.from_directory(d), step=i)
def same(found, name):
    with found.open(name) as file:
        return file.read() == body(name, found.step)
def say(**what): print("said", json.dumps(what), flush=True)
exec(open("step.py").read())
"""
SAVE = "save(1)\nsave(2)\ntime.sleep(600)\n"
READ_ALL = """
found = trainjob.get_checkpoint()
names = found.files()
good = all(same(found, name) for name in names)
with found.as_directory() as d:
    whole = all(pathlib.Path(d, name).read_bytes() == body(name, found.step) for name in names)
    for there in (d, found.to_directory()):
        whole &= sorted(os.path.relpath(p, there) for p in pathlib.Path(there).rglob("*") if p.is_file()) == names
say(id=found.id, files=len(names), good=good and whole, world=states["world"])
"""


class World:
    """A job of two agents, the storage it uses, and what was asked of that."""

    def __init__(self, folder: Path, storage: str, faults: Faults | None) -> None:
        self.folder, self.storage, self.faults = folder, storage, faults
        env = {} if faults is None else s3.environment(faults.endpoint)
        self.store = open_store(storage)
        self.env = {"NO_PROXY": "127.0.0.1", **env}

    def rig(self, **options: Any) -> Rig:
        return Rig(self.folder, script=TRAIN, storage=self.storage, env=self.env, **options)

    def step(self, rig: Rig, attempt: int, text: str, members: list[int] | None = None) -> None:
        (rig.work / "step.py").write_text(text)
        for agent in rig.agents.values():
            agent.output.write_bytes(b"")
        rig.run(attempt, members)

    def saved(self, rig: Rig, members: list[int] | None = None) -> None:
        """Attempt 1: two checkpoints, both committed and off the agents' hands."""
        self.step(rig, 1, SAVE, members)
        rig.wait(lambda: self.store.size("checkpoints/1-1-2/.trainjob/manifest.json") is not None, "both are committed")
        rig.wait(lambda: all(r["uploads"] == 0 for r in rig.coordinator.reports.values()), "and known to be")
        rig.hold()
        rig.wait(lambda: all(r["quiet"] for r in rig.coordinator.reports.values()), "ranks are gone")

    def uri(self, id_: str) -> str:
        return f"{self.storage}/checkpoints/{id_}"

    def forget(self) -> None:
        if self.faults is not None:
            self.faults.requests.clear()

    def downloads(self) -> Counter[str]:
        """Files of checkpoints that came from the bucket, by name."""
        assert self.faults is not None
        keys = [
            r.split("checkpoints/", 1)[1].split("?")[0]
            for r in list(self.faults.requests)
            if r.startswith("GET ") and "checkpoints/1-" in r
        ]
        return Counter(
            key.split("/", 1)[1] for key in keys if ".trainjob" not in key and "/" in key and not key.endswith("/")
        )


on_a_path = pytest.mark.parametrize("world", ["path"], indirect=True)
in_a_bucket = pytest.mark.parametrize("world", ["s3"], indirect=True)


def alike(ranks: range, **said: Any) -> dict[int, dict[str, Any]]:
    """All of them said the same."""
    return dict.fromkeys(ranks, said)


def new_pod(rig: Rig, *slots: int) -> None:
    """Nothing of the old one is left."""
    for slot in slots:
        rig.agents[slot].process.kill()
        rig.exit_code(slot)
        shutil.rmtree(rig.work_dir(slot))
        rig.coordinator.forget(slot)
        rig.start(slot)


def said(rig: Rig) -> dict[int, dict[str, Any]]:
    """What each rank said last."""
    found = {}
    for agent in rig.agents.values():
        for line in agent.text.splitlines():
            if "| said {" in line:
                found[int(line.split(" ", 1)[0][1:])] = json.loads(line.split("said ", 1)[1])
    return found


@pytest.fixture(params=["path", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if request.param == "path":
        yield World(tmp_path, str(tmp_path / "store"), None)
        return
    faults = Faults(s3.endpoint())
    s3.use(monkeypatch, s3.endpoint())
    yield World(tmp_path, s3.fresh_uri(), faults)
    faults.close()


def test_new_pods_bring_only_what_their_ranks_open_and_once_for_all_of_them(world: World) -> None:
    with world.rig(processes=2) as rig:
        world.saved(rig)
        new_pod(rig, 0, 1)
        world.forget()
        reading = """
found = trainjob.get_checkpoint()
state = dict(states)
listed = found.files()
good = same(found, f"part-{c.rank}") and same(found, "shared/all") and same(found, "shared/all")
say(id=found.id, state=state, listed=listed, good=good, shown=repr(found))
"""
        world.step(rig, 2, reading)
        rig.wait(rig.completed, "completed")
        parts = [f"part-{rank}" for rank in range(4)]
        for rank in range(4):
            told = said(rig)[rank]
            assert told.pop("shown").startswith("Checkpoint(id='1-1-2', uri=")
            assert told == {
                "id": "1-1-2",
                "state": {"rank": rank, "world": 4},
                "listed": [*parts, "shared/all"],
                "good": True,
            }
        if world.faults is not None:
            assert world.downloads() == {**dict.fromkeys(parts, 1), "shared/all": 2}, (
                "once for each worker that has a reader of it"
            )


@in_a_bucket
def test_what_a_peers_agent_still_has_is_not_taken_from_storage_unless_it_is_not_what_was_committed(
    world: World,
) -> None:
    with world.rig() as rig:
        world.saved(rig)
        new_pod(rig, 1)
        staged = rig.work_dir(0) / "staging/1-1-2/files/shared/all"
        staged.write_bytes(staged.read_bytes()[:-1] + b"!")
        world.forget()
        reading = """
found = trainjob.get_checkpoint()
say(id=found.id, good=[same(found, name) for name in ("part-0", "part-1", "shared/all")])
"""
        world.step(rig, 2, reading)
        rig.wait(rig.completed, "completed")
        assert said(rig) == alike(range(2), id="1-1-2", good=[True] * 3)
        assert world.downloads() == {"part-1": 2, "shared/all": 2}, (
            "for each worker what the lost pod had, and what somebody wrote to in the survivor's staging"
        )


def test_damage_is_found_by_who_opens_that_file_and_the_one_before_is_taken(world: World) -> None:
    with world.rig() as rig:
        world.saved(rig)
        new_pod(rig, 0, 1)
        overwrite(world.uri("1-1-2"), "part-1", b"!" * len(b"part-1 2 " * 20_000))
        world.step(
            rig, 2, "found = trainjob.get_checkpoint()\nsay(id=found.id, good=same(found, 'part-0'))\ntime.sleep(600)\n"
        )
        rig.wait(lambda: len(said(rig)) == 2, "what is whole can be read")
        assert said(rig) == alike(range(2), id="1-1-2", good=True)
        rig.hold()
        rig.wait(lambda: all(r["quiet"] for r in rig.coordinator.reports.values()))
        world.step(
            rig, 3, "found = trainjob.get_checkpoint()\nif c.rank == 1: same(found, 'part-1')\ntime.sleep(600)\n"
        )
        rig.wait(lambda: rig.ended(0, 1, attempt=3), "the attempt is over")
        assert {r["kind"] for r in rig.ranks(3).values()} == {contract.END_DAMAGED}
        assert "part-1 is damaged" in rig.rank(1)["error"]["message"]
        assert world.store.size("checkpoints/1-1-2/.trainjob/damaged.json") is not None
        world.step(rig, 4, READ_ALL)
        rig.wait(rig.completed, "completed")
        assert said(rig) == alike(range(2), id="1-1-1", files=3, good=True, world=2)


@on_a_path
def test_a_file_that_vanishes_under_the_ranks_ends_the_attempt(world: World) -> None:
    with world.rig() as rig:
        world.saved(rig)
        new_pod(rig, 0, 1)
        world.step(
            rig,
            2,
            "found = trainjob.get_checkpoint()\nsay(id=found.id)\nwhile not os.path.exists('go'): "
            "time.sleep(0.02)\nfound.open('part-0')\n",
        )
        rig.wait(lambda: len(said(rig)) == 2, "both have their handle")
        overwrite(world.uri("1-1-2"), "part-0", None)
        (rig.work / "go").touch()
        rig.wait(lambda: rig.ended(0, 1, attempt=2), "the attempt is over")
        assert {r["kind"] for r in rig.ranks(2).values()} == {contract.END_DAMAGED}
        world.step(rig, 3, READ_ALL)
        rig.wait(rig.completed, "completed")
        assert said(rig)[0]["id"] == "1-1-1"


@pytest.mark.parametrize(("world", "staged"), [("path", 16), ("s3", 4)], indirect=["world"])
def test_eight_ranks_come_back_as_four_and_as_sixteen(world: World, staged: int) -> None:
    """With one size from staging and peers, with the other, in new pods, from storage."""
    members = {16: [0, 1, 2, 3], 4: [0, 1]}
    with world.rig(agents=4, processes=4) as rig:
        world.saved(rig, [0, 1])
        for attempt, size in ((2, staged), (3, 20 - staged)):
            if attempt == 3:
                new_pod(rig, 0, 1, 2, 3)
            rig.processes = size // len(members[size])
            read_by(world, rig, attempt, members[size], alike(range(size), id="1-1-2", files=9, good=True, world=8))


def read_by(world: World, rig: Rig, attempt: int, members: list[int], expected: dict[int, dict[str, Any]]) -> None:
    """Each rank of an attempt reads every file of every rank that saved."""
    world.step(rig, attempt, READ_ALL + "time.sleep(600)\n", members)
    rig.wait(lambda: len(said(rig)) == len(expected), "all have read everything")
    assert said(rig) == expected
    rig.hold()
    rig.wait(lambda: all(r["quiet"] for r in rig.coordinator.reports.values()))
