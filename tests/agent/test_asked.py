"""A person asks where the ranks of a cluster's job are: its agents answer once, and training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.slow

WAITS = """
import time, trainjob
c = trainjob.get_context()

def load_batch():
    while True:
        time.sleep(0.01)

if c.rank == 0:
    load_batch()
trainjob.barrier()
"""


def test_each_question_is_answered_once_for_all_ranks(tmp_path: Path) -> None:
    with Rig(tmp_path, script=WAITS) as rig:
        rig.run(1)
        rig.wait(lambda: rig.report(0)["begin"] is not None, "they have begun")
        word = dict(rig.coordinator.instructions[0])

        def ask(request: str) -> str:
            rig.coordinator.tell(0, **word, stacks=request)
            rig.wait(lambda: (rig.report(0)["stacks"] or {}).get("request") == request, "the answer")
            return str(rig.report(0)["stacks"]["stacks"])

        answers = []
        for number in range(100):
            answers.append(ask(f"q{number}"))
            if "load_batch" in answers[-1] and "barrier" in answers[-1]:
                break
        assert "load_batch" in answers[-1] and "barrier" in answers[-1], answers[-1]
        rig.coordinator.tell(0, **word)
        rig.wait(lambda: rig.report(0)["stacks"] is None, "nobody asks any more")
        assert rig.report(1)["stacks"] is None
