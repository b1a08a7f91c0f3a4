"""An agent that nobody could reach goes on with its attempt while a newer attempt runs elsewhere: both save, and the
older never wins.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support import s3
from support.agent_rig import Rig
from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.stores.opening import open_store

pytestmark = pytest.mark.slow

SCRIPT = """
import os, pathlib, tempfile, time, trainjob
c = trainjob.get_context()
found, start = trainjob.get_checkpoint(), 0
if found:
    with found.as_directory() as folder:
        start = int(pathlib.Path(folder, "part").read_text().split()[0])
print("from", start, flush=True)
for i in range(start + 1, 100):
    while i > (2 if c.get_attempt() == 1 else 4) and not os.path.exists(f"go-{c.get_attempt()}"):
        time.sleep(0.02)
    if i == 8:
        break
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "part").write_text(f"{i} of attempt {c.get_attempt()}")
    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=i)
"""


@pytest.mark.parametrize("where", ["path", "s3"])
def test_the_older_attempt_never_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    s3.clear(monkeypatch)
    place = s3.fresh_uri() if where == "s3" else str(tmp_path / "store")
    with Rig(
        tmp_path, script=SCRIPT, storage=place, env=s3.environment(s3.endpoint()) if where == "s3" else None
    ) as rig:
        if where == "s3":
            s3.use(monkeypatch, s3.endpoint())
        store = open_store(place)
        rig.run(1, [0])
        rig.wait(
            lambda: store.size("checkpoints/1-1-2/.trainjob/manifest.json") is not None, "the first attempt has saved"
        )
        rig.run(2, [1])  # nobody tells worker 0
        rig.wait(
            lambda: store.size("checkpoints/1-2-2/.trainjob/manifest.json") is not None, "the second attempt has saved"
        )
        rig.wait_text(1, "from 2")
        (rig.work / "go-1").touch()
        rig.wait(
            lambda: store.size("checkpoints/1-1-7/.trainjob/manifest.json") is not None or rig.report(0)["completed"],
            "the zombie goes on to its end",
        )
        newest = stored.newest_good(store, 1, [])
        assert newest is not None and str(newest.id) == "1-2-2"
        choice = settle(store, "uid-1", "auto", []).choice
        assert choice is not None and str(choice.note.id) == "1-2-2", "a third attempt would go on from the second"
        (rig.work / "go-2").touch()
        rig.wait(lambda: rig.report(1)["completed"], "the second attempt completes")
        assert str(catalogue.list_checkpoints(store)[-1].id) == "1-2-5"
