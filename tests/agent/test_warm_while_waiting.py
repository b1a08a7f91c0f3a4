"""An agent that waits, as a spare or for the other workers of a start, makes what its ranks are forks of meanwhile, and
says when it is there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import ROOT, Rig
from support.warm_parents import PATIENT, parents_of
from trainjob_api import contract

pytestmark = pytest.mark.slow

SAYS = """
import os, sys, time, trainjob
context = trainjob.get_context()
how = "fork" if "imported_slowly" in sys.modules else "new interpreter"
print("rank", context.get_world_rank(), "is a", how, "in attempt", os.environ["TRAINJOB_ATTEMPT"], flush=True)
time.sleep(600)
"""
SLOW = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.01)
"""


DIES = "import os\nos._exit(3)\n"


def rig_of(tmp_path: Path, module: str = SLOW, **spec: Any) -> Rig:
    """Agents whose warm parent imports this: unless told otherwise it is not done before `gate` is there."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "imported_slowly.py").write_text(module.format(gate=str(tmp_path / "gate")))
    path = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "worker-image"), str(library)])
    made = {"prefork": contract.PREFORK_ALWAYS, "preload": ["imported_slowly"], **spec}
    return Rig(tmp_path, script=SAYS, agents=2, spec=made, env={"PYTHONPATH": path}, entry=PATIENT)


def words(rig: Rig, slot: int) -> list[bool]:
    """What its reports said, in order, each change once."""
    said = [report["warming"] for report in rig.coordinator.log if report["slot"] == slot]
    return [word for at, word in enumerate(said) if at == 0 or word != said[at - 1]]


@pytest.mark.parametrize("told", [contract.DO_HOLD, contract.DO_WAIT])
def test_while_it_waits_it_imports_and_says_when_that_is_over(tmp_path: Path, told: str) -> None:
    with rig_of(tmp_path) as rig:
        for slot in (0, 1):
            rig.coordinator.tell(slot, do=told, grace_s=0.0)
        rig.wait(lambda: parents_of(rig, 0) and parents_of(rig, 1), "both have begun")
        rig.wait(lambda: all(rig.report(slot).get("acknowledged") for slot in (0, 1)), "they are told to wait")
        assert [words(rig, slot) for slot in (0, 1)] == [[True], [True]]
        (tmp_path / "gate").touch()
        rig.wait(lambda: words(rig, 0) == words(rig, 1) == [True, False], "and they say so by themselves")
        assert rig.report(0)["attempt"] == 0
        rig.run(1)
        for rank in (0, 1):
            rig.wait_text(rank, f"rank {rank} is a fork in attempt 1")


def test_one_that_is_to_fork_nothing_waits_for_nothing(tmp_path: Path) -> None:
    with rig_of(tmp_path, prefork=contract.PREFORK_NEVER) as rig:
        rig.hold()
        rig.wait(lambda: words(rig, 0)[-1:] == words(rig, 1)[-1:] == [False], "it is as warm as it will be")
        assert parents_of(rig, 0) == []


def test_a_parent_that_dies_twice_is_waited_for_no_longer(tmp_path: Path) -> None:
    with rig_of(tmp_path, DIES) as rig:
        rig.hold()
        rig.wait(lambda: words(rig, 0)[-1:] == [False], "it can be counted on all the same")
        rig.wait_text(0, "the warm parent died 2 times")
