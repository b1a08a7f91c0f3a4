"""Agents whose ranks are forks of a warm parent: attempt after attempt, whatever dies, and nothing is left."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from support.agent_rig import ROOT, Rig
from support.patience import HANG_S
from support.warm_parents import PATIENT, children_of, parent_of, parents_of
from trainjob_api import contract

pytestmark = pytest.mark.slow

ALWAYS = {"prefork": contract.PREFORK_ALWAYS, "preload": ["decimal"]}
SAYS = """
import os, sys, time, trainjob
context = trainjob.get_context()
how = "fork" if "decimal" in sys.modules else "new interpreter"
print("rank", context.get_world_rank(), "is a", how, "in attempt", os.environ["TRAINJOB_ATTEMPT"], flush=True)
trainjob.barrier()
time.sleep(600)
"""


def test_a_killed_rank_is_back_as_a_fork(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SAYS, agents=1, processes=2, spec=ALWAYS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait_text(0, "rank 1 is a fork in attempt 1")
        rig.wait(lambda: rig.running(0, 1, attempt=1))
        os.kill(rig.pid_of(1, 1), signal.SIGKILL)
        rig.wait(lambda: rig.ended(1, attempt=1))
        assert (rig.ranks(1)[1]["kind"], rig.ranks(1)[1]["signal"]) == (contract.END_SIGNAL, signal.SIGKILL)
        rig.run(2)
        for rank in (0, 1):
            rig.wait_text(0, f"rank {rank} is a fork in attempt 2")
        assert "new interpreter" not in rig.text(0)
        rig.exit()
        assert rig.exit_code(0) == contract.EXIT_OK
        rig.wait(lambda: parents_of(rig) == [], "nothing is left")


def test_forks_for_the_next_attempt_wait_before_anything_breaks(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SAYS, agents=1, processes=2, spec=ALWAYS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1, attempt=1))
        rig.wait(lambda: len(children_of(rig)) == 3, "the parent, and two forks that wait")
        waited = children_of(rig)
        os.kill(rig.pid_of(1, 1), signal.SIGKILL)
        rig.run(2)
        rig.wait(lambda: rig.running(0, 1, attempt=2))
        assert {rank["pid"] for rank in rig.ranks(2).values()} <= set(waited)
        rig.exit()
        assert rig.exit_code(0) == contract.EXIT_OK
        rig.wait(lambda: parents_of(rig) == [], "nothing is left")


def test_a_parent_that_is_killed_costs_no_rank(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SAYS, agents=1, processes=2, spec=ALWAYS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1, attempt=1))
        parent = parent_of(rig)
        os.kill(parent, signal.SIGKILL)
        rig.wait(lambda: parent not in parents_of(rig), "it is gone")
        assert rig.running(0, 1, attempt=1)
        rig.run(2)
        for rank in (0, 1):
            rig.wait_text(0, f"rank {rank} is a fork in attempt 2")


@pytest.mark.parametrize("struck", ["agent", "told to exit"])
def test_parent_and_forks_end_with_their_agent(tmp_path: Path, struck: str) -> None:
    with Rig(tmp_path, script=SAYS, agents=1, processes=2, spec=ALWAYS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1, attempt=1))
        assert len(parents_of(rig)) >= 1
        pids = [rig.pid_of(number, 1) for number in rig.ranks(1)]
        if struck == "agent":
            rig.agents[0].process.kill()
        else:
            rig.exit()
        rig.exit_code(0, HANG_S)
        rig.wait(lambda: parents_of(rig) == [] and not any(_lives(pid) for pid in pids), "nothing is left")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_never_means_that_there_is_no_parent(tmp_path: Path) -> None:
    with Rig(tmp_path, script=SAYS, agents=1, spec={**ALWAYS, "prefork": contract.PREFORK_NEVER}) as rig:
        rig.run(1)
        rig.wait_text(0, "rank 0 is a new interpreter in attempt 1")
        assert parents_of(rig) == []


SCARCE = """
import errno, os
own, fork, tries = os.getpid(), os.fork, []
def full():
    tries.append(1)
    if (os.getpid() == own) == IN_THE_PARENT and len(tries) > 1:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = full
"""
"""A parent that imports this has looked at itself with a fork, and then finds no room for another: for the first of a
gate, or for that one's own.
"""


def short_of_forks(tmp_path: Path, module: str) -> Rig:
    """An agent whose warm parent has imported that."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "scarce.py").write_text(module)
    path = os.pathsep.join([str(modules), str(ROOT / "operator"), str(ROOT / "worker-image")])
    spec = {**ALWAYS, "preload": ["decimal", "scarce"]}
    return Rig(tmp_path, script=SAYS, agents=1, spec=spec, entry=PATIENT, env={"PYTHONPATH": path})


@pytest.mark.parametrize("in_the_parent", [True, False], ids=["the first", "the second"])
def test_where_there_is_no_room_for_a_fork_ranks_start_plainly_and_it_is_said(
    tmp_path: Path, in_the_parent: bool
) -> None:
    with short_of_forks(tmp_path, SCARCE.replace("IN_THE_PARENT", str(in_the_parent))) as rig:
        rig.run(1)
        rig.wait_text(0, "rank 0 is a new interpreter in attempt 1")
        why = f"the warm parent cannot be forked: [Errno {errno.EAGAIN}] {os.strerror(errno.EAGAIN)}"
        rig.wait(lambda: (rig.report(0)["forks"] or {}).get("why") == why, "the reason in its report")
        assert rig.text(0).count(f"ranks start in a new interpreter: {why}") == 1


SCARCE_FOR_A_MOMENT = """
import errno, os, pathlib
own, fork, tries = os.getpid(), os.fork, []
def full():
    tries.append(1)
    if os.getpid() == own and len(tries) == 3:
        pathlib.Path("FLAG").touch()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = full
"""
"""There is no room for the fork that is made ahead: the parent has looked at itself with one, the second is a rank."""


def test_a_fork_that_could_not_be_made_ahead_is_made_later_and_nothing_else_is_said(tmp_path: Path) -> None:
    flag = tmp_path / "refused"
    with short_of_forks(tmp_path, SCARCE_FOR_A_MOMENT.replace("FLAG", str(flag))) as rig:
        rig.run(1)
        rig.wait_text(0, "rank 0 is a fork in attempt 1")
        rig.wait(flag.exists, "none for the next start")
        rig.run(2)
        rig.wait_text(0, "rank 0 is a fork in attempt 2")
        assert "a new interpreter" not in rig.text(0)
        rig.wait(lambda: rig.report(0)["forks"] == {"ranks": 1, "why": None, "learned": []}, "nor in its report")


IMPORTS = """
import sys, tempfile, trainjob
before = set(sys.modules)
checkpoint = trainjob.get_checkpoint()
if checkpoint is not None:
    checkpoint.open("state").read()
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/state", "w").write("7")
    trainjob.report({"loss": 1.0}, checkpoint=trainjob.Checkpoint.from_directory(folder))
new = sorted(name for name in set(sys.modules) - before if name.startswith("trainjob"))
print("attempt", trainjob.get_context().attempt, "imports", new, flush=True)
trainjob.barrier()
if trainjob.get_context().attempt == 1:
    sys.exit(7)
"""


def test_what_a_first_report_needs_of_ours_is_imported_ahead(tmp_path: Path) -> None:
    """Each fork would import it anew, before its first step."""
    with Rig(tmp_path, script=IMPORTS, agents=1, spec=ALWAYS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait_text(0, "attempt 1 imports []")
        rig.wait(lambda: rig.ended(0, attempt=1))
        rig.run(2)
        rig.wait_text(0, "attempt 2 imports []")
