"""Each agent tells how an attempt began on it, part by part, and its ranks tell theirs with their first step."""

from __future__ import annotations

from pathlib import Path

from support.agent_rig import Rig
from trainjob.agent import steady
from trainjob.agent.attempts.beginning import Beginning
from trainjob_api.rank_messages import Begun

SCRIPT = """
import time, trainjob
checkpoint = trainjob.get_checkpoint()
for step in range(3):
    trainjob.report({"step": step})
time.sleep(600)
"""


def test_the_parts_of_a_start_come_in_their_order(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SCRIPT) as rig:
        rig.run(1)
        rig.wait(lambda: all("first_step" in (rig.report(slot).get("begin") or {}) for slot in (0, 1)))
        for slot in (0, 1):
            begin = rig.report(slot)["begin"]
            order = [begin[name] for name in ("stopped", "joined", "forked", "restored", "first_step")]
            assert order == sorted(order) and order[0] >= 0
            assert "group" not in begin, "the script has no process group"
        told = rig.report(0)["begin"]["told"]
        rig.run(2)
        rig.wait(lambda: all(rig.report(slot)["attempt"] == 2 for slot in (0, 1)))
        rig.wait(lambda: "first_step" in (rig.report(1)["begin"] or {}))
        assert rig.report(0)["begin"]["told"] > told


def test_a_group_is_up_with_its_last_rank_and_one_rank_that_steps_suffices() -> None:
    beginning = Beginning(told=steady.of_monotonic(100.0))
    beginning.began(Begun(first_step=100.5, group=100.2, restored=None))
    beginning.began(Begun(first_step=107.0, group=100.3, restored=100.4))
    report = beginning.report()
    assert {name: report[name] for name in ("group", "restored", "first_step")} == {  # type: ignore[literal-required]
        "group": 300,
        "restored": 400,
        "first_step": 500,
    }
