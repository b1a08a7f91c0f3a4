"""Loops that save into the folder that they loaded from, and are killed while they do: each start resumes whole, from
what was acknowledged, whatever they did to the files that they were given.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.slow

# Each step rewrites both files of the loaded folder. A plan says in which attempt it is killed at which point.
LOOP = """
import json, os, pathlib, signal, tempfile, trainjob
from trainjob.session import own_folder
own_folder.COPIED_BYTES = int(os.environ["COPIED_BYTES"])
c = trainjob.get_context()
plan = json.load(open("plan.json"))
SIZE = 2 << 20
def at(point):
    if plan.get(str(c.attempt)) == point:
        os.kill(os.getpid(), signal.SIGKILL)
def body(step): return bytes([step]) * SIZE
def in_place(path, step):
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(body(step)[: SIZE // 2]); file.flush()
        at("half")
        file.write(body(step)[SIZE // 2 :])
def over(path, step):
    with open(path, "wb") as file:
        file.write(body(step)[: SIZE // 2]); file.flush()
        at("half")
        file.write(body(step)[SIZE // 2 :])
def renamed(path, step):
    beside = path.with_name("beside")
    over(beside, step)
    os.replace(beside, path)
save = {"in_place": in_place, "over": over, "renamed": renamed}[os.environ["HOW"]]
found = trainjob.get_checkpoint()
first, folder = 1, pathlib.Path(tempfile.mkdtemp())
if found is not None:
    first = found.step + 1
    folder = pathlib.Path(found.path)
    model, optim = ((folder / name).read_bytes() for name in ("model.pt", "optim.pt"))
    whole = model == optim == body(found.step)
    with found.open("model.pt") as file:
        whole = whole and file.read() == model
    with open("starts", "a") as file:
        print(json.dumps({"attempt": c.attempt, "id": found.id, "step": found.step, "whole": whole}), file=file)
for step in range(first, first + 3):
    at("loaded")
    save(folder / "model.pt", step)
    at("between")
    save(folder / "optim.pt", step)
    at("saved")
    mode = trainjob.CheckpointUploadMode[os.environ["MODE"]]
    kept = trainjob.Checkpoint.from_directory(folder)
    trainjob.report({}, checkpoint=kept, step=step, checkpoint_upload_mode=mode, delete_local_checkpoint_after_upload=False)
    with open("acknowledged", "w") as file:
        file.write(str(step))
at("end")
"""
POINTS = ["end", "half", "between", "saved"]
"""At which attempt 1, 2, ... is killed; 1 has acknowledged three steps by then, the others are in their first one."""


@pytest.mark.parametrize(
    ("where", "large", "how"),
    [(where, large, "in_place") for where in ("no storage", "staging", "storage") for large in (False, True)]
    + [(where, True, how) for where in ("staging", "storage") for how in ("over", "renamed")],
)
def test_a_loop_that_saves_where_it_loaded_resumes_whole_wherever_it_is_killed(
    tmp_path: Path, where: str, large: bool, how: str
) -> None:
    """`storage`: each attempt has a new pod, and storage keeps one checkpoint."""
    env = {
        "HOW": how,
        "COPIED_BYTES": "0" if large else str(64 << 20),
        "MODE": "SYNC" if where == "storage" else "ASYNC",
    }
    storage = None if where == "no storage" else tmp_path / "store"
    with Rig(tmp_path, script=LOOP, agents=1, storage=storage, env=env, spec={"keep": 1}) as rig:
        plan = {str(attempt): point for attempt, point in enumerate(POINTS, 1)}
        (rig.work / "plan.json").write_text(json.dumps(plan))
        for attempt in range(1, len(POINTS) + 1):
            rig.run(attempt)
            rig.wait(lambda number=attempt: rig.ended(0, attempt=number), "it was killed")
            if where == "storage":
                new_pod(rig)
        rig.run(len(POINTS) + 1)
        rig.wait(rig.completed, "completed")
        starts = [json.loads(line) for line in (rig.work / "starts").read_text().splitlines()]
    assert [(s["attempt"], s["step"], s["whole"]) for s in starts] == [
        (attempt, 3, True) for attempt in range(2, len(POINTS) + 2)
    ]


def new_pod(rig: Rig) -> None:
    rig.agents[0].process.kill()
    rig.exit_code(0)
    shutil.rmtree(rig.work_dir(0))
    rig.coordinator.forget(0)
    rig.start(0)
