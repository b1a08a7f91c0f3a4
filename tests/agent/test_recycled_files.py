"""Loops whose checkpoints are written over former ones: killed while they do, each start resumes whole, and what a rank
has mapped of the checkpoint that it resumed from stays as it was.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.slow

# A plan says in which attempt rank 0 is killed at which point.
LOOP = """
import json, mmap, os, signal, time, trainjob
from trainjob_api import contract
c = trainjob.get_context()
plan, waiting = json.load(open("plan.json")), os.environ[contract.ENV_RECYCLED]
SIZE = 2 << 20
def at(point):
    if plan.get(str(c.attempt)) == point:
        os.kill(os.getpid(), signal.SIGKILL)
class Half:
    def __reduce__(self):
        at("half")
        return str, ()
def waits(step):
    try:
        with open(os.path.join(waiting, contract.DICT_FILE), "rb") as file:
            file.seek(SIZE // 2)
            return file.read(1) == body(step)[:1]
    except FileNotFoundError:
        return False
def body(step): return bytes([step]) * SIZE
found, first, seen = trainjob.get_checkpoint(), 1, None
if found is not None:
    first = found.step + 1
    with found.open("checkpoint.pkl") as file:
        seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if c.get_world_rank() == 0:
        state = found.to_dict()
        whole = state["one"] == state["two"] == body(found.step)
        with open("starts", "a") as file:
            print(json.dumps({"attempt": c.attempt, "step": found.step, "whole": whole}), file=file)
for step in range(first, first + 5):
    checkpoint = None
    if c.get_world_rank() == 0:
        # What the last save has driven out, after which nothing else can come.
        waited = step > first + 2
        while waited and not waits(step - 2):
            time.sleep(0.01)
        checkpoint = trainjob.Checkpoint.from_dict({"one": body(step), "half": Half(), "two": body(step)})
        if waited and not os.listdir(waiting):
            with open("taken", "a") as file:
                print(c.attempt, file=file)
        at("written")
    trainjob.report({}, checkpoint=checkpoint, step=step)
    if seen is not None:
        assert seen[:].count(body(first - 1)) == 2, "another checkpoint was written over what is mapped"
at("end")
"""
POINTS = ["end", "half", "written"]


@pytest.mark.parametrize("where", ["no storage", "storage"])
def test_a_loop_whose_files_are_written_over_resumes_whole_wherever_it_is_killed(tmp_path: Path, where: str) -> None:
    storage = None if where == "no storage" else tmp_path / "store"
    with Rig(tmp_path, script=LOOP, agents=1, processes=2, storage=storage, spec={"keep": 1}) as rig:
        plan = {str(attempt): point for attempt, point in enumerate(POINTS, 1)}
        (rig.work / "plan.json").write_text(json.dumps(plan))
        for attempt in range(1, len(POINTS) + 1):
            rig.run(attempt)
            rig.wait(lambda number=attempt: rig.ended(0, attempt=number), "it was killed")
        rig.run(len(POINTS) + 1)
        rig.wait(rig.completed, "completed")
        starts = [json.loads(line) for line in (rig.work / "starts").read_text().splitlines()]
        taken = (rig.work / "taken").read_text().split()
    assert [(s["attempt"], s["step"], s["whole"]) for s in starts] == [(2, 5, True), (3, 5, True), (4, 5, True)]
    assert taken == ["1", "1", "4", "4"]
