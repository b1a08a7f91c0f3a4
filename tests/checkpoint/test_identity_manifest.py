"""Identities, notes and manifests: order, round trips, and that nothing malformed gets in."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.checkpoint import note_of
from trainjob.checkpoint.publishing.shares import ShareRecord
from trainjob.checkpoint.records.identity import CheckpointId, is_newer
from trainjob.checkpoint.records.manifest import FileEntry, Manifest, NoteFile, ReleaseNote
from trainjob.checkpoint.records.merge import merge

NUMBERS = st.integers(min_value=1, max_value=10**9)
IDS = st.builds(CheckpointId, NUMBERS, NUMBERS, NUMBERS)
NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=8).filter(lambda n: n not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.lists(
    st.builds(NoteFile, PATHS, st.integers(0, 2**60), st.integers(0, 4096)), max_size=4, unique_by=lambda f: f.path
).map(tuple)


@given(IDS, IDS)
def test_identities_compare_as_numbers_and_come_back_from_text(one: CheckpointId, other: CheckpointId) -> None:
    assert CheckpointId.parse(str(one)) == one
    assert (one < other) == ((one.run, one.attempt, one[2]) < (other.run, other.attempt, other[2]))


@pytest.mark.parametrize(
    "text", ["", "1-2", "1-2-3-4", "01-2-3", "1-02-3", "0-1-1", "1-2-x", " 1-2-3", "1-2-3\n", "١-2-3", "-1-2-3"]
)
def test_other_spellings_are_no_identity(text: str) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint identity; one reads <run>-<attempt>-<index>"):
        CheckpointId.parse(text)


@given(IDS, st.none() | IDS, FILES, FILES)
def test_a_note_comes_back_from_json(
    id_: CheckpointId, parent: CheckpointId | None, files: tuple[NoteFile, ...], copies: tuple[NoteFile, ...]
) -> None:
    note = ReleaseNote(id_, parent, 7, None, 2, {"a": {"b": 1.5}}, 1.25, 4, 9, files, copies, {"k": [1]})
    assert ReleaseNote.from_json(note.to_json()) == note


@given(IDS, FILES)
def test_a_manifest_comes_back_from_storage(id_: CheckpointId, files: tuple[NoteFile, ...]) -> None:
    entries = tuple(FileEntry(f.path, f.size, "0badcafe", "crc32", f.rank) for f in files)
    manifest = Manifest(note_of(str(id_), {f.path: (f.size, f.rank) for f in files}), entries, "nonce")
    assert Manifest.loads(manifest.dumps()) == manifest


def test_metrics_that_are_no_numbers_for_json_come_back() -> None:
    manifest = Manifest(note_of("1-1-1", {}, metrics={"loss": math.nan, "best": -math.inf}), (), "n")
    back = Manifest.loads(manifest.dumps()).note.metrics
    assert math.isnan(back["loss"]) and back["best"] == -math.inf


def test_every_flipped_byte_of_a_manifest_or_share_is_noticed() -> None:
    entries = (FileEntry("model.pt", 3, "0badcafe", "crc32", 0),)
    for text, loads in (
        (Manifest(note_of("1-1-1", {"model.pt": (3, 0)}), entries, "n").dumps(), Manifest.loads),
        (ShareRecord(entries, ()).dumps(CheckpointId(1, 1, 1), 0), ShareRecord.loads),
    ):
        whole = loads(text)
        for at in range(len(text)):
            for bit in (1, 16):
                broken = text[:at] + bytes([text[at] ^ bit]) + text[at + 1 :]
                try:
                    assert loads(broken) == whole  # white space, or an escape's upper case
                except (ValueError, KeyError):
                    pass
        for end in range(len(text) - 1):
            with pytest.raises((ValueError, KeyError)):
                loads(text[:end])


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b", 7, None])
def test_paths_that_leave_the_checkpoint_are_refused(path: object) -> None:
    doc = note_of("1-1-1", {}).to_json()
    doc["files"] = [[path, 1, 0]]
    with pytest.raises(ValueError, match="no path of a file inside a checkpoint"):
        ReleaseNote.from_json(doc)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"files": None},
        {"files": [["a", -1, 0]]},
        {"files": [["a", 1]]},
        {"metrics": []},
        {"step": "3"},
        {"world_size": True},
    ],
)
def test_a_malformed_note_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ReleaseNote.from_json({**note_of("1-1-1", {}).to_json(), **change})
    for nonsense in (None, [], 3, "x"):
        with pytest.raises(ValueError):
            ReleaseNote.from_json(nonsense)


def test_the_lowest_ranks_copy_counts_and_one_warning_names_both() -> None:
    merged = merge(
        {2: [("m.pt", 5), ("own-2", 1)], 0: [("m.pt", 5), ("n.pt", 4)], 1: [("n.pt", 9), ("o.pt", 1), ("m.pt", 7)]}
    )
    assert {(f.path, f.rank) for f in merged.files} == {("m.pt", 0), ("n.pt", 0), ("o.pt", 1), ("own-2", 2)}
    assert merged.duplicates == (NoteFile("m.pt", 5, 2),)
    (warning,) = merged.warnings
    assert "ranks 0 and 1 gave different files under one name ('n.pt', 'm.pt'): rank 0's counts" in warning


def test_a_file_where_a_lower_rank_has_a_folder_does_not_count() -> None:
    merged = merge({0: [("a/b", 1), ("c", 1)], 1: [("a", 1), ("c/d", 1)]})
    assert [f.path for f in merged.files] == ["a/b", "c"]
    assert len(merged.warnings) == 1


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.lists(st.tuples(st.sampled_from(["a", "a/b", "a/b/c", "d"]), st.integers(0, 2)), max_size=4),
        max_size=4,
    )
)
def test_merged_files_never_collide(listings: dict[int, list[tuple[str, int]]]) -> None:
    paths = [f.path for f in merge(listings).files]
    assert len(set(paths)) == len(paths)
    assert not [(p, q) for p in paths for q in paths if q.startswith(p + "/")]


def test_a_manifest_is_json_that_every_parser_reads() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = Manifest(note_of("1-1-1", {}, metrics={"loss": math.nan}), (), "n").dumps()
    assert json.loads(text, parse_constant=refuse)["metrics"] == {"loss": "NaN"}


def test_which_of_two_names_is_newer() -> None:
    assert is_newer("1-2-10", "1-2-9") and is_newer("2-0-0", "1-99-99") and not is_newer("1-1-1", "1-1-1")
    assert is_newer("1-0-0", "no name") and not is_newer("no name", "")
