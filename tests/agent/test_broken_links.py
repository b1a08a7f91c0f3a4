"""The connection between two agents breaks, again and again: nothing is lost, nothing hangs, nothing is done twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.cut_proxy import CutProxy
from trainjob_api import contract

pytestmark = pytest.mark.slow
CUTS = 15
"""Then the link holds: after each break an agent waits longer before it connects again. The ranks come to each quarter
of their steps after a quarter of the cuts.
"""

SCRIPT = """
import os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
for i in range(1, 61):
    while i % 15 == 0 and not os.path.exists(f"go-{i}"):
        time.sleep(0.01)
    trainjob.report({"i": i})
    assert trainjob.broadcast_from_rank_zero(i * (c.rank == 0)) == i
    if i % 6 == 0:
        with tempfile.TemporaryDirectory() as d:
            pathlib.Path(d, f"part-{c.rank}").write_text(str(i))
            trainjob.report({"i": i}, checkpoint=trainjob.Checkpoint.from_directory(d), step=i, checkpoint_upload_mode="SYNC" if i == 36 else None)
print("all done", flush=True)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_over_a_link_that_keeps_breaking_completes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Rig(tmp_path, script=SCRIPT, storage=tmp_path / "store") as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 2)
        proxy = CutProxy(rig.coordinator.reports[0]["address"])
        try:
            rig.run_one(0, 1, 0, [0, 1])
            rig.run_one(1, 1, 1, [0, 1], leader=proxy.address)
            cuts = 0
            while cuts < CUTS:
                time.sleep(rng.uniform(0.005, 0.15))
                cuts += proxy.cut()
                for step in range(15, 60 * cuts // CUTS + 1, 15):
                    (rig.work / f"go-{step}").touch()
            rig.wait(rig.completed, "completed")
        finally:
            proxy.close()
        assert proxy.accepted > 3
        assert rig.report(0)["progress"]["position"] == 70
        assert {r["kind"] for r in rig.ranks().values()} == {contract.END_OK}
        ids = sorted(
            p.name for p in (tmp_path / "store/checkpoints").iterdir() if (p / ".trainjob/manifest.json").exists()
        )
        assert len(ids) == 10
        for folder in (tmp_path / "store/checkpoints").iterdir():
            assert (folder / "part-0").read_text() == (folder / "part-1").read_text()
