"""spec.checkpoint.strict: two ranks, one file name, different bytes fail report() on every rank, before anything is
acknowledged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.checkpoint import note_of
from trainjob.agent.barriers.comparison import Comparison
from trainjob.checkpoint.records.manifest import NoteFile

SCRIPT = """
import pathlib, tempfile, warnings, trainjob
c = trainjob.get_context()
def save(what, data):
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "m").write_bytes(data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder))
            print(what, "saved", trainjob.get_checkpoint().id, len(said), flush=True)
        except trainjob.CheckpointError as error:
            print(what, "refused", error, flush=True)
save("one agent", b"%d" % c.rank if c.rank < 2 else b"0")
save("two agents, sizes", b"x" * (1 + c.rank // 2))
save("two agents, bytes", b"%d" % (c.rank // 2))
save("alike", b"same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_different_bytes_under_one_name(tmp_path: Path, strict: bool) -> None:
    with Rig(tmp_path, script=SCRIPT, processes=2, storage=tmp_path / "store", spec={"strict": strict}) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(
            lambda: rig.report(0)["completed"] and rig.report(0)["checkpoint_count"] == (1 if strict else 4),
            "all that was saved is committed",
        )
        for slot in (0, 1):
            text = rig.text(slot)
            assert text.count("alike saved 1-1-4 0") == 2
            if not strict:
                assert [
                    text.count(f"{what} saved") for what in ("one agent", "two agents, sizes", "two agents, bytes")
                ] == [2, 2, 2]
                assert text.count("one agent saved 1-1-1 1") == 2, "one warning"
                continue
            for what, ranks in (
                ("one agent", "0 and 1"),
                ("two agents, sizes", "0 and 2"),
                ("two agents, bytes", "0 and 2"),
            ):
                refused = (
                    f"{what} refused Nothing was saved, as checkpoints of this job are strict: ranks {ranks} gave "
                    "different files under one name ('m')"
                )
                assert text.count(refused) == 2, (what, text)
        assert sorted(p.name for p in (tmp_path / "store/checkpoints").iterdir()) == (
            ["1-1-4"] if strict else [f"1-1-{n}" for n in range(1, 5)]
        )


def test_only_paths_that_two_agents_gave_are_asked_for() -> None:
    note = note_of("1-1-1", {"m": (4, 0), "own": (4, 1), "d": (1, 0)})._replace(
        duplicates=(NoteFile("m", 4, 2), NoteFile("d", 1, 3))
    )
    comparison = Comparison(note, {0: 0, 1: 0, 2: 1, 3: 1})
    assert comparison.question(0) == {0: ("d", "m")} and comparison.question(1) == {2: ("m",), 3: ("d",)}
    assert not comparison.answered(0, {0: {"d": "a", "m": "b"}})
    assert not comparison.answered(0, {0: {"d": "other", "m": "other"}}), "told again after a lost connection"
    assert comparison.answered(1, {2: {"m": "b"}, 3: {"d": "c"}})
    (said,) = comparison.differences()
    assert said.startswith("ranks 0 and 3 gave different files under one name ('d')")
