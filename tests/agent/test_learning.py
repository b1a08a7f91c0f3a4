"""What a script imports beyond what is imported ahead is there in the forks after the first failure, and nothing that
does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.agent_rig import Rig
from trainjob_api import contract

pytestmark = pytest.mark.slow

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
    site = folder / "env" / "site-packages"
    (site / "large").mkdir(parents=True)
    names = [f"part{number}" for number in range(40)]
    (site / "large" / "__init__.py").write_text("".join(f"from large import {name}\n" for name in names))
    for name in (*names, "lazy"):
        (site / "large" / f"{name}.py").write_text("")
    (site / "threads.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (site / "opens.py").write_text("import socket\nkept = socket.socket()\n")
    (site / "ranked.py").write_text("import os\nrank = int(os.environ.get('LOCAL_RANK', 0))\n")
    return str(site)


def kill(rig: Rig, attempt: int) -> None:
    rig.wait(lambda: rig.running(0, attempt=attempt))
    os.kill(rig.ranks(attempt)[0]["pid"], signal.SIGKILL)
    rig.wait(lambda: rig.ended(0, attempt=attempt))


def test_what_the_script_imports_is_imported_ahead_of_the_next_start(tmp_path: Path) -> None:
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec={"prefork": "auto"}) as rig:
        (rig.work / "mine.py").write_text("")
        rig.run(1)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait_text(0, "from the next start on these are imported ahead: large")
        assert "threads is not imported ahead: what was imported started threads" in rig.text(0)
        assert "opens is not imported ahead: what was imported opened socket" in rig.text(0)
        assert "ranked is not imported ahead: ranked reads LOCAL_RANK while it is imported" in rig.text(0)
        rig.wait(lambda: (rig.report(0).get("forks") or {}).get("learned") == ["large"])
        assert rig.report(0)["forks"] == {"ranks": 1, "why": None, "learned": ["large"]}
        kill(rig, 1)
        rig.run(2)
        rig.wait_text(0, "rank 0 attempt 2 has large large.lazy trainjob.torch.position and no more")
        rig.exit()
        assert rig.exit_code(0) == contract.EXIT_OK


def test_nothing_is_learned_where_the_modules_are_named(tmp_path: Path) -> None:
    path = os.pathsep.join([installed(tmp_path), *filter(None, sys.path)])
    spec = {"prefork": "auto", "preload": []}
    with Rig(tmp_path, script=SCRIPT, agents=1, env={"PYTHONPATH": path}, spec=spec) as rig:
        (rig.work / "mine.py").write_text("")
        rig.run(1)
        rig.wait_text(0, "rank 0 attempt 1 has and no more")
        rig.wait(lambda: rig.report(0)["progress"] is not None and rig.report(0)["progress"]["position"] == 1)
        assert not (rig.work_dir(0) / "imported.json").exists() and "imported ahead" not in rig.text(0)
