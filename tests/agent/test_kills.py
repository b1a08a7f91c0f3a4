"""An agent, its storage child, a rank or a whole pod killed while a chosen step of the protocol is under way, in a
bucket and in a folder: nothing torn, nothing acknowledged lost, training ends. The step (a request, a file-system call)
takes effect before the death, or after it, or never.

TRAINJOB_TEST_EVERY_KILL=1 runs all combinations; else each step and each victim at least once.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from support import held_calls, s3
from support.agent_rig import Rig
from support.held_calls import HeldCalls
from support.s3_held import Held
from support.storage_children import child_of
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.stores.opening import open_store

pytestmark = pytest.mark.slow

SCRIPT = """
import os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
found, start = trainjob.get_checkpoint(), 0
if found:
    with found.as_directory() as folder:
        parts = sorted(pathlib.Path(folder).glob("part-*"))
        steps = {int(part.read_text()) for part in parts}
        assert len(parts) == 2 and len(steps) == 1, (parts, steps)
        start = steps.pop()
def note(text):
    with open(f"notes-{c.rank}", "a") as file:
        file.write(f"{c.get_attempt()} {text}\\n")
note(f"from {start}")
for i in range(start + 1, 5):
    while i == 4 and not os.path.exists("go on"):
        time.sleep(0.02)
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, f"part-{c.rank}").write_text(str(i))
    trainjob.report({"loss": 1 / i}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=i)
    note(f"saved {i}")
"""


class Step(NamedTuple):
    """What of the protocol is under way: the S3 request or the call of `os` that does it, and the end of the name it
    is done to.
    """

    request: str
    call: str
    key: str
    keep: int | None = None


STEPS = {
    "the claim of the run": Step("PUT", "link", "runs/1.json"),
    "a file": Step("PUT", "link", "1-1-1/part-0"),
    "the end of a share": Step("PUT", "link", "1-1-2/.trainjob/rank-0.json"),
    "a manifest": Step("PUT", "link", "1-1-2/.trainjob/manifest.json"),
    "rows of the history": Step("PUT", "replace", "history/1-1.jsonl"),
    "a mark of retention": Step("PUT", "link", "1-1-1/.trainjob/retired.json", keep=1),
    "the removal of a manifest": Step("DELETE", "unlink", "1-1-1/.trainjob/manifest.json", keep=1),
    "the removal of a file": Step("DELETE", "unlink", "1-1-1/part-0", keep=1),
}
STAYS = "agent, its child stays"
"""Such a child stands still until all is over, as before a storage that hangs, and then goes on with what it was
told.
"""
VICTIMS = ("agent", "storage child", "rank", "pod", STAYS)
EVERY = [
    (place, step, victim, through)
    for place, step, victim, through in itertools.product(("bucket", "folder"), STEPS, VICTIMS, (True, False))
    if (step, victim) != ("the claim of the run", "rank")  # no rank runs yet
]
SOME = [
    ("bucket", "the claim of the run", "agent", True),
    ("bucket", "a file", "pod", True),
    ("bucket", "the end of a share", "rank", True),
    ("bucket", "a manifest", "agent", True),
    ("bucket", "a mark of retention", STAYS, True),
    ("bucket", "the removal of a manifest", "agent", False),
    ("folder", "a file", "agent", False),
    ("folder", "a manifest", "pod", False),
    ("folder", "a manifest", STAYS, False),
    ("folder", "rows of the history", "agent", False),
    ("folder", "a mark of retention", "storage child", True),
    ("folder", "the removal of a file", "pod", False),
]


class Place(Protocol):
    """Storage where one step can be made to stand still."""

    uri: str

    def rig(self, step: Step, through: bool) -> Mapping[str, Any]:
        """Hold that step once it is tried; what a Rig needs for it. `through`: it takes effect before whoever does
        it goes on or dies.
        """

    def wait(self) -> bool:
        """Until it is held."""

    def let_go(self, through: bool) -> None:
        """Whoever lives goes on."""


class Bucket:
    """By a proxy in front of an S3 server."""

    def __init__(self) -> None:
        self.uri = s3.fresh_uri()
        self._held = Held(s3.endpoint())

    def rig(self, step: Step, through: bool) -> Mapping[str, Any]:
        self._held.hold(
            lambda _at, request: request.startswith(step.request) and request.partition("?")[0].endswith(step.key)
        )
        return {"env": s3.environment(self._held.endpoint)}

    def wait(self) -> bool:
        return self._held.wait()

    def let_go(self, through: bool) -> None:
        self._held.let_go(through)

    def close(self) -> None:
        self._held.let_go(through=False)
        self._held.close()


class Folder:
    """In the storage child itself."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "store")
        self._held = HeldCalls()

    def rig(self, step: Step, through: bool) -> Mapping[str, Any]:
        return {
            "entry": held_calls.AGENT,
            "env": self._held.environment(
                "trainjob.checkpoint.storage_child.child", step.call, step.key, after=through
            ),
        }

    def wait(self) -> bool:
        return self._held.wait()

    def let_go(self, through: bool) -> None:
        self._held.let_go()

    def close(self) -> None:
        self._held.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Folder(tmp_path) if request.param == "folder" else Bucket()
    if request.param == "bucket":
        s3.use(monkeypatch, s3.endpoint())
    yield made
    made.close()


def notes(rig: Rig, rank: int, what: str, attempt: int | None = None) -> list[int]:
    path = rig.work / f"notes-{rank}"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(row[2]) for row in rows if row[1] == what and attempt in (None, int(row[0]))]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(rig: Rig, victim: str, child: int) -> None:
    """Of worker 0, whose storage child is `child`."""
    if victim == "rank":
        rig.wait(lambda: rig.running(0), "the rank runs")
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0), "its end is seen")
        return
    if victim in ("storage child", "pod"):
        os.kill(child, signal.SIGKILL)
    if victim != "storage child":
        rig.agents[0].process.kill()
        rig.exit_code(0)
        rig.coordinator.forget(0)
    if victim == "pod":
        shutil.rmtree(rig.work_dir(0))


@pytest.mark.parametrize(
    ("place", "step", "victim", "through"),
    EVERY if os.environ.get("TRAINJOB_TEST_EVERY_KILL") else SOME,
    indirect=["place"],
)
def test_nothing_is_torn_or_lost_and_training_ends(
    place: Place, tmp_path: Path, step: str, victim: str, through: bool
) -> None:
    with Rig(
        tmp_path, script=SCRIPT, storage=place.uri, spec={"keep": STEPS[step].keep}, **place.rig(STEPS[step], through)
    ) as rig:
        rig.run(1)
        assert place.wait(), rig.everything()
        store, child = open_store(place.uri), child_of(rig, 0)
        kill(rig, victim, child)
        (rig.work / "go on").touch()
        acknowledged = min(max(notes(rig, rank, "saved"), default=0) for rank in (0, 1))
        durable = [manifest.note.step or 0 for manifest in stored.good(store, 1, [])]
        if victim != STAYS:
            place.let_go(through)
        if victim not in ("storage child", "rank"):
            rig.start(0)
        if victim != "storage child":
            rig.run(2)
        rig.wait(rig.completed, f"completed after {step}")
        if victim != "storage child":
            promised = max(durable, default=0) if victim == "pod" else acknowledged
            assert notes(rig, 0, "from", 2) == notes(rig, 1, "from", 2) and min(notes(rig, 0, "from", 2)) >= promised
        if victim == STAYS:
            place.let_go(through)
            rig.wait(lambda: gone(child), "the child of the dead agent ends")
        found = catalogue.list_checkpoints(store)
        assert found[-1].note.step == 4
        for manifest in found:
            assert stored.verify(store, f"checkpoints/{manifest.id}").entries
        if STEPS[step].keep is not None:
            assert not store.sizes("checkpoints/1-1-1"), "a removal that was cut off is finished"
        elif victim != "pod":
            assert {manifest.note.step for manifest in found} == {1, 2, 3, 4}, (
                "what was acknowledged is stored in the end"
            )


STAGING = {
    "a file is staged": ("rename", "1-1-2/files/part-{slot}"),
    "the release note is written": ("replace", "1-1-2/released.json"),
}


@pytest.mark.parametrize("storage", [True, False])
@pytest.mark.parametrize(
    ("step", "after", "slot"),
    [
        ("a file is staged", True, 1),
        ("the release note is written", False, 0),
        ("the release note is written", True, 1),
    ],
)
def test_an_agent_killed_in_its_staging_area_loses_nothing_that_was_acknowledged(
    tmp_path: Path, step: str, after: bool, slot: int, storage: bool
) -> None:
    """Without storage, what is staged is all there is."""
    call, key = STAGING[step]
    script = SCRIPT.replace(
        "from_directory(folder), step=i", "from_directory(folder), checkpoint_upload_mode='ASYNC', step=i"
    )  # moved, not copied
    held, place = HeldCalls(), str(tmp_path / "store")
    rig = Rig(
        tmp_path,
        script=script,
        agents=0,
        storage=place if storage else None,
        spec={"keep": 2},
        entry=held_calls.AGENT,
        env=held_calls.PATH,
    )
    with closing(held), rig:
        rig.start(1 - slot)
        rig.start(slot, held.environment("trainjob.agent", call, key.format(slot=slot), after=after))
        (rig.work / "go on").touch()
        rig.run(1, [0, 1])
        assert held.wait(), rig.everything()
        rig.wait(lambda: all(notes(rig, rank, "saved") for rank in (0, 1)), "the first is acknowledged")
        rig.agents[slot].process.kill()
        rig.exit_code(slot)
        acknowledged = min(max(notes(rig, rank, "saved"), default=0) for rank in (0, 1))
        rig.coordinator.forget(slot)
        rig.start(slot)
        rig.run(2, [0, 1])
        rig.wait(rig.completed, "completed")
        assert notes(rig, 0, "from", 2) == notes(rig, 1, "from", 2) and min(notes(rig, 0, "from", 2)) >= acknowledged
        assert max(notes(rig, 0, "saved")) == max(notes(rig, 1, "saved")) == 4
        if storage:
            assert catalogue.list_checkpoints(open_store(place))[-1].note.step == 4
