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


READ_LATER = """
import trainjob
older = None
for number in (1, 2, 3):
    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_dict({"number": number}), step=number)
    older = older or trainjob.get_checkpoint()
try:
    print("read", older.to_dict(), flush=True)
except trainjob.CheckpointError as error:
    print("refused:", error, flush=True)
"""


def test_without_storage_an_older_one_that_is_gone_is_refused_and_ends_no_attempt(tmp_path: Path) -> None:
    with Rig(tmp_path, script=READ_LATER, agents=2) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "they ended")
        assert "refused: checkpoint 1-1-1 is no longer held: " in rig.text(0), rig.text(0)
        assert "Only the newest one is kept" in rig.text(0)
        assert "read {'number': 1}" in rig.text(1), "what was brought from there stays"
