"""Workers whose image has Python 3.9: agents, storage children and ranks, from the first start to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.oldest_python import oldest_python
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, tempfile, trainjob
assert sys.version_info[:2] == (3, 9), sys.version
c = trainjob.get_context()
start, checkpoint = 0, trainjob.get_checkpoint()
if checkpoint is not None:
    with checkpoint.as_directory() as folder:
        start = int(open(os.path.join(folder, f"step-{c.rank}")).read())
print("from", start, flush=True)
for step in range(start, 4):
    trainjob.log({"loss": 1 / (step + 1)})
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, f"step-{c.rank}"), "w") as file:
            file.write(str(step + 1))
        trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_directory(folder))
    if step == 1 and start == 0 and c.rank == 1:
        raise ValueError("broken once")
assert trainjob.broadcast_from_rank_zero(c.rank) == 0
trainjob.barrier()
"""


def test_a_job_breaks_resumes_and_completes_on_it(tmp_path: Path) -> None:
    python = oldest_python()
    with Rig(tmp_path, script=SCRIPT, storage=tmp_path / "store", python=python, command=[python, "train.py"]) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(1), "rank 1 has raised")
        assert (rig.rank(1)["kind"], rig.rank(1)["error"]["type"]) == (contract.END_EXCEPTION, "ValueError")
        rig.run(2)
        rig.wait(rig.completed, "the run is complete")
        rig.wait_text(0, "from 2")
        rig.exit(0)
        assert (rig.exit_code(0), rig.exit_code(1)) == (0, 0)
