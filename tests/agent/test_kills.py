"""An agent, its storage child, a rank or a whole pod killed while a chosen request of the protocol is under way: nothing torn, nothing acknowledged
lost, training ends. The request takes effect after the death, or is lost.

TRAINJOB_TEST_EVERY_KILL=1 runs all combinations; else each step and each victim at least once.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import dying_agent, s3
from support.agent_rig import ROOT, Rig
from support.s3_held import Held
from trainjob.checkpoint import catalogue, stored
from trainjob.checkpoint.opening import open_store

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
STEPS = {
    "the claim of the run": ("PUT", "runs/1.json"),
    "a file": ("PUT", "1-1-1/part-0"),
    "the end of a share": ("PUT", "1-1-2/.trainjob/rank-0.json"),
    "a manifest": ("PUT", "1-1-2/.trainjob/manifest.json"),
    "a mark of retention": ("PUT", "1-1-1/.trainjob/retired.json"),
    "the removal of a manifest": ("DELETE", "1-1-1/.trainjob/manifest.json"),
}
VICTIMS = ("agent", "storage child", "rank", "pod")
EVERY = [(step, victim, through) for step, victim, through in itertools.product(STEPS, VICTIMS, (True, False))]
SOME = [
    ("the claim of the run", "agent", True),
    ("a file", "pod", True),
    ("the end of a share", "rank", True),
    ("a manifest", "agent", True),
    ("a manifest", "storage child", True),
    ("a mark of retention", "pod", True),
    ("the removal of a manifest", "agent", False),
]


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held(s3.endpoint())
    yield made
    made.let_go(through=False)
    made.close()


def child_of(rig: Rig, slot: int) -> int:
    """The pid of an agent's storage child."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except (OSError, ValueError):
                continue
            if parent == rig.agents[slot].process.pid and b"trainjob.checkpoint.child" in command:
                return int(name)
    raise AssertionError("no storage child")


def notes(rig: Rig, rank: int, what: str, attempt: int | None = None) -> list[int]:
    path = rig.work / f"notes-{rank}"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(row[2]) for row in rows if row[1] == what and attempt in (None, int(row[0]))]


def kill(rig: Rig, victim: str) -> None:
    """Of worker 0; what is to come back is started again."""
    if victim == "rank":
        rig.wait(lambda: rig.running(0), "the rank runs")
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0), "its end is seen")
        return
    child = child_of(rig, 0)
    if victim != "agent":
        os.kill(child, signal.SIGKILL)
    if victim == "storage child":
        return
    rig.agents[0].process.kill()
    rig.exit_code(0)
    if victim == "pod":
        shutil.rmtree(rig.work_dir(0))
    rig.coordinator.reports.pop(0)


@pytest.mark.parametrize(("step", "victim", "through"), EVERY if os.environ.get("TRAINJOB_TEST_EVERY_KILL") else SOME)
def test_nothing_is_torn_or_lost_and_training_ends(held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, victim: str, through: bool) -> None:
    if victim == "rank" and step == "the claim of the run":
        pytest.skip("no rank runs yet")
    place = s3.fresh_uri()
    method, key = STEPS[step]
    held.hold(lambda _at, request: request.startswith(method) and request.partition("?")[0].endswith(key))
    with Rig(tmp_path, script=SCRIPT, storage=place, spec={"keep": 1}, env=s3.environment(held.endpoint)) as rig:
        rig.run(1)
        assert held.wait(), rig.everything()
        s3.use(monkeypatch, s3.endpoint())
        store = open_store(place)
        kill(rig, victim)
        (rig.work / "go on").touch()
        acknowledged = min(max(notes(rig, rank, "saved"), default=0) for rank in (0, 1))
        durable = [manifest.note.step or 0 for manifest in stored.good(store, 1, [])]
        held.let_go(through)
        if victim in ("agent", "pod"):
            rig.start(0)
        if victim != "storage child":
            rig.run(2)
        rig.wait(rig.completed, f"completed after {held.request}", 60)
        if victim != "storage child":
            promised = max(durable, default=0) if victim == "pod" else acknowledged
            assert notes(rig, 0, "from", 2) == notes(rig, 1, "from", 2) and min(notes(rig, 0, "from", 2)) >= promised
        newest = catalogue.list_checkpoints(store)[-1]
        assert newest.note.step == 4
        assert stored.verify(store, f"checkpoints/{newest.id}").entries


STAGING = {
    "a file is staged": ("rename", "1-1-2/files/part-0"),
    "the release note is written": ("replace", "1-1-2/released.json"),
}


@pytest.mark.parametrize(
    ("step", "after", "slot"),
    [("a file is staged", True, 1), ("the release note is written", False, 0), ("the release note is written", True, 1)],
)
def test_an_agent_killed_in_its_staging_area_loses_nothing_that_was_acknowledged(tmp_path: Path, step: str, after: bool, slot: int) -> None:
    call, target = STAGING[step]
    marker = tmp_path / "struck"
    plan = json.dumps({"call": call, "target": target.replace("part-0", f"part-{slot}"), "after": after, "marker": str(marker)})
    path = os.pathsep.join(str(ROOT / name) for name in ("operator", "worker-image", "tests"))
    script = SCRIPT.replace("from_directory(folder), step=i", "from_directory(folder), checkpoint_upload_mode='ASYNC', step=i")  # moved, not copied
    rig = Rig(tmp_path, script=script, agents=0, storage=tmp_path / "store", spec={"keep": 2}, entry=("-m", "support.dying_agent"), env={"PYTHONPATH": path})
    with rig:
        for one in (0, 1):
            rig.start(one, {dying_agent.ENV: plan if one == slot else json.dumps(dict(json.loads(plan), target="nothing"))})
        (rig.work / "go on").touch()
        rig.run(1, [0, 1])
        rig.wait(lambda: rig.agents[slot].process.poll() is not None, "killed")
        assert marker.exists()
        acknowledged = min(max(notes(rig, rank, "saved"), default=0) for rank in (0, 1))
        rig.coordinator.reports.pop(slot)
        rig.start(slot, {dying_agent.ENV: plan})
        rig.run(2, [0, 1])
        rig.wait(rig.completed, "completed", 60)
        assert notes(rig, 0, "from", 2) == notes(rig, 1, "from", 2) and min(notes(rig, 0, "from", 2)) >= acknowledged
        newest = catalogue.list_checkpoints(open_store(str(tmp_path / "store")))[-1]
        assert newest.note.step == 4
