"""A checkpoint of more files than agents can tell each other about is refused in a sentence; one of very many is
saved.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.slow

SCRIPT = """
import pathlib, tempfile, trainjob
c = trainjob.get_context()
def save(count):
    folder = pathlib.Path(tempfile.mkdtemp())
    for n in range(count):
        (folder / f"rank-{c.rank}-file-{n:05}").write_bytes(b"x")
    try:
        trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(str(folder)))
        print("saved", len(trainjob.get_checkpoint().files()), flush=True)
    except trainjob.CheckpointError as error:
        print("refused", error, flush=True)
save(600)
save(300)
save(200)
"""
LOWERED = (
    "import os; from trainjob.checkpoint.records import names; names.LISTING_LIMIT = 16_000; from "
    "trainjob.agent.__main__ import main; os._exit(main())"
)


def test_a_list_that_is_too_long_is_refused_on_all_ranks_and_training_goes_on(tmp_path: Path) -> None:
    """Of one worker, and of all together; the limit is lowered for the test."""
    with Rig(tmp_path, script=SCRIPT, storage=tmp_path / "store", entry=("-c", LOWERED)) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        for slot in (0, 1):
            text = rig.text(slot)
            assert text.count("refused Worker ") == 1 and "the checkpoint has 600 files, whose names take" in text
            assert text.count("refused the checkpoint has 600 files") == 1, "300 of each worker"
            assert text.count("saved 400") == 1 and "Save fewer, larger files" in text
