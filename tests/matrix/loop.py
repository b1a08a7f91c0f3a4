"""A training loop without torch that meets each moment of the matrix: two numbers and momentum (`zoo/loops/tiny.py`), saved
and reported at each step, one file a rank.

    loop.py NOTES

Notes losses bit for bit, where each attempt began, and what was acknowledged.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

from support import faults

faults.point(faults.IMPORT)

import trainjob  # noqa: E402 - the moment comes first

os.environ["ZOO_NOTES"] = sys.argv[1]

from zoo.loops.tiny import STEPS, Net  # noqa: E402


def note(what: str, step: int) -> None:
    """One write, so that it is there even if the rank is killed right after it."""
    with open(os.path.join(sys.argv[1], f"rank-{context.get_world_rank()}"), "a", buffering=1) as file:
        file.write(f"{context.get_attempt()} {what} {step} {time.time()} {os.environ['TRAINJOB_POD_UID']}\n")


def restored() -> dict[str, float] | None:
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        faults.point(faults.RESTORE)
        with open(os.path.join(folder, f"part-{context.get_world_rank()}")) as file:
            return json.load(file)  # type: ignore[no-any-return]


def saved(net: Net, folder: str, step: int) -> trainjob.Checkpoint:
    with open(os.path.join(folder, f"part-{context.get_world_rank()}"), "w") as file:
        json.dump(net.state(), file)
    faults.point(faults.SAVE, step)
    return trainjob.Checkpoint.from_directory(folder)


context = trainjob.get_context()
faults.point(faults.RENDEZVOUS)
trainjob.barrier()
net = Net(started=False)
if (state := restored()) is not None:
    net.load(state)
note("start", net.done)
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = saved(net, folder, step)
        faults.point(faults.REPORT, step)
        trainjob.report({"loss": loss}, checkpoint=checkpoint, checkpoint_upload_mode="ASYNC", step=step)
    note("saved", step)
faults.point(faults.END)
net.finish()
