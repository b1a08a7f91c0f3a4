"""What becomes of the directory that a rank gave, by mode; and a loop that saves to one path again and again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.checkpoint import read_tree
from trainjob import Checkpoint

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, pathlib, tempfile, trainjob
from trainjob import Checkpoint, CheckpointUploadMode as Mode
def given(i, where=None, **options):
    folder = pathlib.Path(where or tempfile.mkdtemp())
    with open(folder / "m", "wb") as file:   # as torch.save does: the same file, rewritten in place
        file.write(b"%d" % i * 1000)
    trainjob.report({}, checkpoint=Checkpoint.from_directory(str(folder)), **options)
    return (folder / "m").exists()
stays = {
    "nothing said": given(1),
    "ASYNC": given(2, checkpoint_upload_mode=Mode.ASYNC),
    "ASYNC, keep": given(3, checkpoint_upload_mode="ASYNC", delete_local_checkpoint_after_upload=False),
    "delete": given(4, delete_local_checkpoint_after_upload=True),
    "SYNC": given(5, checkpoint_upload_mode="SYNC"),
    "SYNC, delete": given(6, checkpoint_upload_mode="SYNC", delete_local_checkpoint_after_upload=True),
    "NO_UPLOAD": given(7, checkpoint_upload_mode="NO_UPLOAD", delete_local_checkpoint_after_upload=True),
}
one = tempfile.mkdtemp()
for i in range(8, 12):
    given(i, one)
os.mkdir("mine")
stays["NO_UPLOAD of a folder of one's own"] = given(12, "mine", checkpoint_upload_mode="NO_UPLOAD")
made = trainjob.Checkpoint.from_dict({"step": 13})
trainjob.report({}, checkpoint=made, checkpoint_upload_mode="NO_UPLOAD")
del made
pathlib.Path("stays").write_text(json.dumps(stays))
"""


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in TMPDIR", "on another file system"])
def test_by_mode_the_directory_goes_or_stays_and_no_later_save_changes_a_saved_one(
    tmp_path: Path, elsewhere: bool
) -> None:
    store = tmp_path / "store"
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as other,
        Rig(tmp_path, script=SCRIPT, agents=1, storage=store) as rig,
    ):
        if elsewhere:
            (rig.work / "train.py").write_text(f"import tempfile\ntempfile.tempdir = {other!r}\n{SCRIPT}")
        rig.run(1)
        rig.wait(rig.completed, "completed")
        stays = json.loads((rig.work / "stays").read_text())
        assert stays == {
            "nothing said": True,
            "ASYNC": False,
            "ASYNC, keep": True,
            "delete": False,
            "SYNC": True,
            "SYNC, delete": False,
            "NO_UPLOAD": True,
            "NO_UPLOAD of a folder of one's own": True,
        }
    for i in range(1, 13):
        tree = read_tree(store / "checkpoints" / f"1-1-{i}")
        files = {path: data for path, data in tree.items() if not path.startswith(".trainjob")}
        if i == 12:  # a note of the place, and no copy
            assert list(files) == [".elsewhere.json"]
        else:
            assert files == {"m": b"%d" % i * 1000}
    last = Checkpoint(str(store / "checkpoints" / "1-1-13"))
    assert last.to_dict() == {"step": 13}, "what NO_UPLOAD was said of, and no place of the user's holds"
