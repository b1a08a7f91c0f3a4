"""A handle of a checkpoint that is no longer the newest: its files leave the staging area as soon as storage has them,
and whoever reads them meanwhile does not notice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.slow

LOOP = """
import os, shutil, tempfile, threading, time, trainjob
from trainjob.session import contents, own_folder
BODY = {number: bytes([number]) * 100_000 for number in (1, 2)}
NAMES = ("model.pt", "other.pt")
def save(number):
    folder = tempfile.mkdtemp()
    for name in NAMES:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(BODY[number])
    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder))
def until_it_left():
    while os.path.exists(staged):
        time.sleep(0.01)
def then_wait(work):
    def waiting(*args):
        made = work(*args)
        until_it_left()
        return made
    return waiting
def read(path):
    with open(path, "rb") as file:
        return file.read()
save(1)
older = trainjob.get_checkpoint()
with older.open("model.pt") as file:
    staged = os.path.realpath(file.name)
save(2)
how = os.environ["HOW"]
if how == "opened":
    contents.Brought.file = then_wait(contents.Brought.file)
    with older.open("model.pt") as file:
        found = [file.read()]
elif how == "by the name of an open file":
    with older.open("model.pt") as file:
        until_it_left()
        found = [read(file.name)]
elif how == "copied":
    shutil.copy2 = then_wait(shutil.copy2)
    folder = older.to_directory()
    found = [read(os.path.join(folder, name)) for name in NAMES]
elif how == "a folder of copies":
    own_folder.shutil.copyfile = then_wait(shutil.copyfile)
    with older.as_directory() as folder:
        found = [read(os.path.join(folder, name)) for name in NAMES]
elif how == "a folder of links":
    own_folder.COPIED_BYTES = 0
    with older.as_directory() as folder:
        until_it_left()
        found = [read(os.path.join(folder, name)) for name in NAMES]
assert all(body == BODY[1] for body in found), "it was another checkpoint's"
print("read whole", flush=True)
"""


@pytest.mark.parametrize(
    "how", ["opened", "by the name of an open file", "copied", "a folder of copies", "a folder of links"]
)
def test_who_reads_an_older_checkpoint_does_not_notice_that_it_leaves_the_staging_area(
    tmp_path: Path, how: str
) -> None:
    with Rig(tmp_path, script=LOOP, agents=1, storage=tmp_path / "store", env={"HOW": how}) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "it ended")
        assert "read whole" in rig.text(0), rig.text(0)
