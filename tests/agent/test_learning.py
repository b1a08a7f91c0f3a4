"""What a script imports beyond what is imported ahead is there in the forks after the first failure, and nothing that
does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support import large_package
from support.agent_rig import Rig
from support.warm_parents import PATIENT, parents_of
from trainjob_api import contract

pytestmark = pytest.mark.slow

AUTO = {"prefork": contract.PREFORK_AUTO}

SCRIPT = """
import os, sys, time, trainjob
OURS = "trainjob.torch.position"
before = [name for name in ("large", "large.lazy", "threads", "opens", "ranked", "mine", OURS) if name in sys.modules]
import large, threads, opens, ranked, mine
from large import lazy
import trainjob.torch.position
rank, attempt = trainjob.get_context().get_world_rank(), os.environ["TRAINJOB_ATTEMPT"]
print("rank", rank, "attempt", attempt, "has", *before, "and no more", flush=True)
trainjob.report({"loss": 1.0})
time.sleep(600)
"""


def installed(folder: Path) -> str:
    """A site-packages with packages of several kinds."""
    site = large_package.install(folder)
    (site / "threads.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (site / "opens.py").write_text("import socket\nkept = socket.socket()\n")
    (site / "ranked.py").write_text("import os\nrank = int(os.environ.get('LOCAL_RANK', 0))\n")
    return str(site)


def kill(rig: Rig, attempt: int) -> None:
    rig.wait(lambda: rig.running(0, attempt=attempt))
    os.kill(rig.pid_of(0, attempt), signal.SIGKILL)
    rig.wait(lambda: rig.ended(0, attempt=attempt))


def test_what_the_script_imports_is_imported_ahead_of_the_next_start(tmp_path: Path) -> None:
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec=AUTO, entry=PATIENT) as rig:
        (rig.work / "mine.py").write_text("")
        rig.run(1)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait_text(0, "from the next start on these are imported ahead: large")
        assert "threads is not imported ahead: what was imported started threads" in rig.text(0)
        assert "opens is not imported ahead: what was imported opened socket" in rig.text(0)
        assert "ranked is not imported ahead: ranked reads LOCAL_RANK while it is imported" in rig.text(0)
        rig.wait(lambda: (rig.report(0).get("forks") or {}).get("learned") == ["large"])
        modules = "large.lazy,trainjob.torch.position"
        known = {"ranks": 1, "why": None, "learned": ["large"], "modules": modules}
        rig.wait(lambda: rig.report(0)["forks"] == known, f"it tells {known}")
        kill(rig, 1)
        rig.run(2)
        rig.wait_text(0, "rank 0 attempt 2 has large large.lazy trainjob.torch.position and no more")
        rig.exit()
        assert rig.exit_code(0) == contract.EXIT_OK


def test_nothing_is_learned_where_the_modules_are_named(tmp_path: Path) -> None:
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    spec = {**AUTO, "preload": []}
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec=spec) as rig:
        (rig.work / "mine.py").write_text("")
        rig.run(1)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait(lambda: rig.report(0)["progress"] is not None and rig.report(0)["progress"]["position"] == 1)
        assert not (rig.work_dir(0) / "imported.json").exists() and "imported ahead" not in rig.text(0)


HAS = "has large large.lazy trainjob.torch.position and no more"
TOLD = "large.lazy,trainjob.torch.position"
SETS = "import os\nos.environ['LARGE'] = '1'\n"


def told_before_its_first_rank(folder: Path, learned: object, script: str = SCRIPT, **spec: object) -> Rig:
    """An agent that waits as a spare does, and is told what others have learned; not entered yet."""
    path = os.pathsep.join([installed(folder), *filter(None, sys.path)])
    made = {**AUTO, **spec}
    rig = Rig(folder, script=script, agents=1, env={"PYTHONPATH": path}, spec=made, entry=PATIENT)
    (rig.work / "mine.py").write_text("")
    rig.coordinator.tell(0, do=contract.DO_HOLD, grace_s=0.0, learned=learned)
    return rig


def begin(rig: Rig) -> None:
    """Once it is as warm as it will be."""
    rig.wait(lambda: rig.report(0).get("acknowledged") and not rig.report(0)["warming"], "it is told, and warm")
    rig.run(1)


def test_who_was_in_no_attempt_imports_ahead_what_others_have_learned(tmp_path: Path) -> None:
    """What does not survive a fork, what reads a rank's place and what is the job's own is as if nobody had named it."""
    with told_before_its_first_rank(tmp_path, f"{TOLD},ranked,opens,mine") as rig:
        rig.wait_text(0, "from the next start on these are imported ahead: large")
        begin(rig)
        rig.wait_text(0, f"rank 0 attempt 1 {HAS}")
        said = rig.text(0)
        assert "ranked is not imported ahead: ranked reads LOCAL_RANK" in said
        assert "opens is not imported ahead: what was imported opened socket" in said
        known = {"ranks": 1, "why": None, "learned": ["large"], "modules": TOLD}
        rig.wait(lambda: rig.report(0)["forks"] == known, f"it tells {known}")
        kill(rig, 1)
        rig.run(2)
        rig.wait_text(0, f"rank 0 attempt 2 {HAS}")
        assert not (rig.work_dir(0) / contract.IMPORTED).exists(), "its ranks need not list what is there"


def test_a_spare_that_is_ready_is_told_later(tmp_path: Path) -> None:
    """Its first parent stays until another has it all."""
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec=AUTO, entry=PATIENT) as rig:
        (rig.work / "mine.py").write_text("")
        rig.hold()
        rig.wait(lambda: rig.report(0).get("acknowledged") and not rig.report(0)["warming"], "it is warm")
        (first,) = parents_of(rig, 0)
        rig.coordinator.tell(0, do=contract.DO_HOLD, grace_s=0.0, learned=TOLD)
        rig.wait(lambda: rig.report(0)["forks"].get("modules") == TOLD, "it has learned, and says so by itself")
        assert not any(
            report["warming"] for report in rig.coordinator.log if report["forks"] and "modules" in report["forks"]
        )
        rig.wait(lambda: first not in parents_of(rig, 0), "the first one is gone")
        rig.run(1)
        rig.wait_text(0, f"rank 0 attempt 1 {HAS}")


@pytest.mark.parametrize(
    ("script", "has"),
    [(SCRIPT, HAS), (SETS + SCRIPT, "has and no more")],
    ids=["the same code", "it sets variables now"],
)
def test_an_agent_that_is_started_anew_in_its_pod_has_what_the_one_before_it_had_learned(
    tmp_path: Path, script: str, has: str
) -> None:
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec=AUTO, entry=PATIENT) as rig:
        (rig.work / "mine.py").write_text("")
        rig.run(1)
        rig.wait(lambda: (rig.report(0).get("forks") or {}).get("learned") == ["large"])
        rig.coordinator.tell(0, do=contract.DO_WAIT)
        rig.agents[0].process.kill()
        rig.agents[0].process.wait()
        (rig.work / "train.py").write_text(script)
        boot = rig.report(0)["boot"]
        rig.start(0)
        rig.wait(lambda: rig.report(0)["boot"] > boot)
        rig.run(2)
        rig.wait_text(0, f"rank 0 attempt 2 {has}")


@pytest.mark.parametrize(
    ("learned", "script", "spec"),
    [
        (TOLD, SETS + SCRIPT, {}),
        (TOLD, SCRIPT, {"preload": []}),
        (["large"], SCRIPT, {}),
        ("../large,large lazy;large", SCRIPT, {}),
        ("no.such.module", SCRIPT, {}),
        ("trainjob.agent.agent", SCRIPT, {}),
    ],
    ids=["a script that sets variables", "named modules", "a list", "no names", "not installed", "ours"],
)
def test_what_may_not_be_learned_here_is_not_taken_from_others(
    tmp_path: Path, learned: object, script: str, spec: dict[str, object]
) -> None:
    with told_before_its_first_rank(tmp_path, learned, script, **spec) as rig:
        begin(rig)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait(lambda: (rig.report(0).get("forks") or {}).get("ranks") == 1, "it tells of a fork")


def test_what_another_could_import_and_this_one_cannot_costs_no_fork(tmp_path: Path) -> None:
    """The parent dies of it, and is made without."""
    rig = told_before_its_first_rank(tmp_path, "large,large.deadly")
    (tmp_path / "env" / "site-packages" / "large" / "deadly.py").write_text("import os\nos._exit(3)\n")
    with rig:
        begin(rig)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait(lambda: (rig.report(0).get("forks") or {}).get("ranks") == 1, "it tells of a fork")
        assert "what was learned is not imported ahead: it ended with exit code 3" in rig.text(0)
