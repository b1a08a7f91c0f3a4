"""Staging: what is taken, what is refused, and what a killed agent finds again."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.checkpoint import cut_off, note_of, read_tree, write_tree
from support.patience import HANG_S
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
from trainjob.checkpoint.records.merge import merge
from trainjob.checkpoint.staging import stamp
from trainjob.checkpoint.staging.area import StageResult, Staging
from trainjob.checkpoint.staging.plan import Source

ID = CheckpointId(1, 1, 1)


def released(staging: Staging, id_: CheckpointId, result: StageResult) -> ReleaseNote:
    merged = merge(result.files)
    note = note_of(str(id_), {})._replace(files=merged.files, duplicates=merged.duplicates)
    staging.release(note)
    return note


def staged(staging: Staging, id_: CheckpointId = ID) -> dict[str, bytes]:
    return read_tree(Path(staging.files_dir(id_)))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staging area ü"))


def test_files_of_all_ranks_lie_in_one_tree_with_their_states(tmp_path: Path, staging: Staging) -> None:
    files = {"model ü.pt": b"m" * 1000, "a b/c\nd/e": b"deep", "empty": b"", "/".join("d" * 40): b"deeper"}
    one = write_tree(tmp_path / "one", files)
    two = write_tree(tmp_path / "two", {"rank1.pt": b"r1"})
    result = staging.stage(ID, [Source(1, str(two), False), Source(0, str(one), False)], {0: b"s0", 1: b""})
    assert result.warnings == []
    assert result.files == {
        0: sorted([*((p, len(d)) for p, d in files.items()), (".trainjob/rank-0.state", 2)]),
        1: [(".trainjob/rank-1.state", 0), ("rank1.pt", 2)],
    }
    assert staged(staging) == {
        **files,
        "rank1.pt": b"r1",
        ".trainjob/rank-0.state": b"s0",
        ".trainjob/rank-1.state": b"",
    }
    assert read_tree(one) == files
    note = released(staging, ID, result)
    (held,) = Staging(staging.root).released()
    assert held.note == note and set(held.paths) == {f.path for f in note.files} and held.ranks == (0, 1)


def test_file_names_that_are_no_utf8_are_kept(tmp_path: Path, staging: Staging) -> None:
    source = tmp_path / "s"
    source.mkdir()
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe.pt")).write_bytes(b"x")
    released(staging, ID, staging.stage(ID, [Source(0, str(source), False)], {}))
    assert Staging(staging.root).released()[0].paths == ("\udcff\udcfe.pt",)


def test_a_loop_that_saves_to_the_same_path_again_does_not_change_the_staged_copy(
    tmp_path: Path, staging: Staging
) -> None:
    source = write_tree(tmp_path / "s", {"model.pt": b"first" * 1000})
    staging.stage(ID, [Source(0, str(source), False)], {})
    with open(source / "model.pt", "r+b") as again:
        again.write(b"SECOND")
    assert staged(staging) == {"model.pt": b"first" * 1000}


def test_a_file_with_a_second_name_is_copied_even_when_it_may_be_moved(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"model.pt": b"first"})
    os.link(source / "model.pt", tmp_path / "other name")
    staging.stage(ID, [Source(0, str(source), True)], {})
    with open(tmp_path / "other name", "r+b") as again:
        again.write(b"SECOND")
    assert staged(staging) == {"model.pt": b"first"}


def test_a_directory_that_may_go_is_moved(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a/model.pt": b"x" * 100, "b": b"y"})
    inode = (source / "b").stat().st_ino
    staging.stage(ID, [Source(0, str(source), True), Source(1, str(source), True)], {})
    assert read_tree(source) == {}
    assert (Path(staging.files_dir(ID)) / "b").stat().st_ino == inode


def test_a_directory_that_one_rank_still_needs_or_that_contains_another_is_not_moved(
    tmp_path: Path, staging: Staging
) -> None:
    files = {"a": b"1", "sub/b": b"2"}
    source = write_tree(tmp_path / "s", files)
    staging.stage(ID, [Source(0, str(source), True), Source(1, str(source), False)], {})
    staging.stage(ID, [Source(0, str(source), True), Source(1, str(source / "sub"), True)], {})
    assert read_tree(source) == files
    assert staged(staging) == {**files, "b": b"2"}


def test_a_staged_checkpoint_that_is_reported_again_is_copied(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    released(staging, ID, staging.stage(ID, [Source(0, str(source), True)], {0: b"old"}))
    staging.stage(CheckpointId(1, 1, 2), [Source(0, staging.files_dir(ID), True)], {})
    assert staged(staging) == {"a": b"1", ".trainjob/rank-0.state": b"old"}
    assert staged(staging, CheckpointId(1, 1, 2)) == {"a": b"1"}


def test_ranks_that_save_the_same_bytes_under_one_name_store_them_once(tmp_path: Path, staging: Staging) -> None:
    sources = [
        Source(r, str(write_tree(tmp_path / str(r), {"m": b"same" * 500, "d": b"%d" % r})), False) for r in (0, 1, 2)
    ]
    result = staging.stage(ID, sources, {})
    assert result.files == {0: [("d", 1), ("m", 2000)], 1: [], 2: []}
    assert staged(staging)["d"] == b"0"
    assert [w[:60] for w in result.warnings] == [
        f"ranks 0 and {r} gave different files under one name ('d'): rank"[:60] for r in (1, 2)
    ]


def test_a_copy_whose_other_copy_counts_is_not_held(tmp_path: Path, staging: Staging) -> None:
    """Another agent's rank 0 gave the same name: what lies here must never be taken for it."""
    source = write_tree(tmp_path / "s", {"m": b"from rank 1", "own": b"1"})
    staging.stage(ID, [Source(1, str(source), False)], {})
    note = note_of("1-1-1", {"m": (11, 0), "own": (1, 1)})._replace(duplicates=(NoteFile("m", 11, 1),))
    staging.release(note)
    (held,) = staging.released()
    assert held.paths == ("own",) and held.ranks == (1,)


def test_an_agent_without_files_keeps_the_note(staging: Staging) -> None:
    staging.stage(ID, [], {})
    staging.release(note_of("1-1-1", {"m": (11, 0)}))
    (held,) = Staging(staging.root).released()
    assert held.paths == () and held.ranks == ()


def test_links_inside_become_copies_of_their_targets(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"blobs/x": b"blob", "step-3/w": b"w"})
    (source / "snap").mkdir()
    (source / "snap/model").symlink_to("../blobs/x")
    (source / "latest").symlink_to("step-3")
    result = staging.stage(ID, [Source(0, str(source), True)], {})
    assert staged(staging) == {"blobs/x": b"blob", "step-3/w": b"w", "snap/model": b"blob", "latest/w": b"w"}
    assert not any(p.is_symlink() for p in Path(staging.files_dir(ID)).rglob("*"))
    assert len(result.files[0]) == 4


def test_links_into_the_staging_area_are_copied(tmp_path: Path, staging: Staging) -> None:
    """A restored checkpoint may consist of them, and be reported again."""
    released(staging, ID, staging.stage(ID, [Source(0, str(write_tree(tmp_path / "s", {"a/m": b"m"})), False)], {}))
    again = write_tree(tmp_path / "again", {"new": b"n"})
    (again / "m").symlink_to(Path(staging.files_dir(ID)) / "a/m")
    staging.stage(CheckpointId(1, 1, 2), [Source(0, str(again), True)], {})
    assert staged(staging, CheckpointId(1, 1, 2)) == {"new": b"n", "m": b"m"} and staged(staging) == {"a/m": b"m"}
    assert not (Path(staging.files_dir(CheckpointId(1, 1, 2))) / "m").is_symlink()


def refused(staging: Staging, directory: Path) -> str:
    with pytest.raises(StagingError) as caught:
        staging.stage(ID, [Source(0, str(directory), True)], {0: b"s"})
    assert not os.path.exists(os.path.join(staging.root, str(ID)))
    assert staging.released() == []
    return str(caught.value)


def test_what_cannot_be_kept_is_refused_in_a_sentence(tmp_path: Path, staging: Staging) -> None:
    assert "does not exist. Pass the directory that was just saved" in refused(staging, tmp_path / "nothing here")
    assert "is not a directory" in refused(staging, write_tree(tmp_path / "f", {"x": b""}) / "x")
    assert "contains the staging area" in refused(staging, tmp_path)
    assert "contains the staging area" in refused(staging, Path("/"))


def test_links_that_leave_dangle_or_loop_are_refused(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    link = source / "b"
    for target, expected in (
        ("/etc/hostname", "outside the checkpoint directory"),
        ("../s2", "outside"),
        ("gone", "which does not exist"),
        (".", "outside"),
    ):
        link.symlink_to(target)
        assert expected in refused(staging, source)
        link.unlink()
    (source / "sub").mkdir()
    (source / "sub/up").symlink_to("../sub")
    assert "leads back to a folder above it" in refused(staging, source)


def test_sockets_and_pipes_are_refused(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    os.mkfifo(source / "p")
    assert "p is a pipe: only files" in refused(staging, source)
    (source / "p").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(source / "sock"))
        assert "sock is a socket: only files" in refused(staging, source)


def test_a_file_that_grows_meanwhile_is_noticed(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"x" * 4_000_000, "growing": b"y"})
    writer = os.fork()
    if writer == 0:
        try:
            with open(source / "growing", "ab", buffering=0) as file:
                while True:
                    file.write(b"y")
        finally:
            os._exit(1)
    try:
        text = ""
        deadline = time.monotonic() + HANG_S
        while not text and time.monotonic() < deadline:  # a stage that falls between two writes is a good one
            try:
                staging.stage(ID, [Source(0, str(source), False)], {})
            except StagingError as error:
                assert error.kind == errors.CHANGED
                text = str(error)
        assert "growing changed while it was staged: something still writes there" in text
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path, small_disk: Path) -> None:
    source = write_tree(tmp_path / "s", {"a": b"x" * 600_000, "b": b"y" * 600_000})
    staging = Staging(str(small_disk / "staging"))
    text = refused(staging, source)
    assert "No space left on device; likely the file system is full. Free space there (df -h" in text
    assert read_tree(source) == {"a": b"x" * 600_000, "b": b"y" * 600_000}
    staging.stage(ID, [Source(0, str(write_tree(tmp_path / "t", {"a": b"x" * 600_000})), False)], {})


def test_torn_notes_and_leftovers_are_not_listed_and_are_swept(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1", "b": b"2"})
    for index in range(1, 7):
        id_ = CheckpointId(1, 1, index)
        result = staging.stage(id_, [Source(0, str(source), False)], {})
        if index != 6:
            released(staging, id_, result)
    root = Path(staging.root)
    note = root / "1-1-1/released.json"
    note.write_bytes(note.read_bytes()[:-10])
    (root / "1-1-2/released.json").write_text(json.dumps({"note": 3, "held": {}}))
    (root / "1-1-3/files/a").unlink()
    (root / "1-1-4").rename(root / "2-1-4")
    (root / "not ours").mkdir()
    fresh = Staging(staging.root)
    assert [(str(h.note.id), h.paths) for h in fresh.released()] == [("1-1-5", ("a", "b")), ("1-1-3", ("b",))]
    assert fresh.sweep() == ["1-1-1", "1-1-2", "1-1-6", "2-1-4"]
    assert sorted(p.name for p in root.iterdir()) == ["1-1-3", "1-1-5", "not ours"]


def test_newest_first_is_by_identity(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    for id_ in ((1, 10, 1), (1, 9, 9), (1, 2, 11), (1, 9, 10)):
        released(staging, CheckpointId(*id_), staging.stage(CheckpointId(*id_), [Source(0, str(source), False)], {}))
    assert [str(h.note.id) for h in staging.released()] == ["1-10-1", "1-9-10", "1-9-9", "1-2-11"]


def test_an_index_is_used_once(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    released(staging, ID, staging.stage(ID, [Source(0, str(source), False)], {}))
    with pytest.raises(StagingError, match="staged and released already"):
        staging.stage(ID, [Source(0, str(source), False)], {})
    staging.drop(ID)
    staging.drop(ID)
    assert staging.released() == []


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_file_operation_a_fresh_staging_lists_whole_ones_alone(tmp_path: Path, after: bool) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1", "sub/b": b"2"})

    def work(root: str) -> None:
        staging = Staging(root)
        id_ = CheckpointId(1, 1, 2)
        staging.drop(ID)
        staging.drop(id_)
        released(staging, id_, staging.stage(id_, [Source(0, str(source), False)], {0: b"state"}))

    at = 0
    killed = True
    while killed:
        at += 1
        root = str(tmp_path / str(at))
        released(Staging(root), ID, Staging(root).stage(ID, [Source(0, str(source), False)], {}))
        killed = cut_off(lambda root=root: work(root), at, after=after)
        for held in Staging(root).released():
            expected = {"a": b"1", "sub/b": b"2"} | ({".trainjob/rank-0.state": b"state"} if held.note.id != ID else {})
            assert read_tree(Path(Staging(root).files_dir(held.note.id))) == expected
        Staging(root).sweep()
        work(root)
        assert [str(h.note.id) for h in Staging(root).released()] == ["1-1-2"]
    assert at > 8


def test_sigkill_at_random_moments_loses_nothing_that_was_released(tmp_path: Path) -> None:
    rng = random.Random(7)
    source, root = tmp_path / "s", str(tmp_path / "staging")
    newest = None
    for attempt in range(1, 16):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _save_for_ever(root, source / str(attempt), attempt, writer)
            finally:
                os._exit(1)
        os.close(writer)
        os.read(reader, 1)
        time.sleep(rng.random() * 0.03)  # the moment of the kill, not a synchronisation
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told = b""
        while part := os.read(reader, 65536):
            told += part
        os.close(reader)
        acknowledged = told.count(b"\n")
        fresh = Staging(root)
        listed = fresh.released()
        newest = CheckpointId(1, attempt, acknowledged) if acknowledged else newest
        assert newest is None or listed[0].note.id >= newest
        for held in listed:
            tree = read_tree(Path(fresh.files_dir(held.note.id)))
            assert {p: zlib.crc32(data) for p, data in tree.items()} == held.note.metadata
            assert set(held.paths) == set(tree)
        fresh.sweep()
        assert len(os.listdir(root)) == len(listed)


def _save_for_ever(root: str, source: Path, attempt: int, writer: int) -> None:
    staging = Staging(root)
    os.write(writer, b".")
    for index in range(1, 10_000):
        id_ = CheckpointId(1, attempt, index)
        files = {f"f{n}": os.urandom(3000) for n in range(5)}
        result = staging.stage(id_, [Source(0, str(write_tree(source / str(index), files)), index % 2 == 0)], {})
        note = note_of(
            str(id_), dict.fromkeys(files, (3000, 0)), metadata={p: zlib.crc32(data) for p, data in files.items()}
        )
        assert result.warnings == []
        staging.release(note)
        os.write(writer, b"\n")
        for older in staging.released()[1:]:
            staging.drop(older.note.id)


def test_a_name_that_storage_takes_for_an_unfinished_file_is_refused(tmp_path: Path, staging: Staging) -> None:
    """A commit tidies such files away: the checkpoint would be torn."""
    source = write_tree(tmp_path / "s", {"a": b"1", "sub/.trainjob-tmp-x/b": b"2"})
    assert "sub/.trainjob-tmp-x/b' has a name that begins with .trainjob-tmp-" in refused(staging, source)
    assert read_tree(source) == {"a": b"1", "sub/.trainjob-tmp-x/b": b"2"}


def test_names_that_a_bucket_cannot_keep_are_refused_when_they_are_staged(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "staging"), "s3://bucket/some/folder")
    source = tmp_path / "s"
    source.mkdir()
    bad = Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe.pt"))
    bad.write_bytes(b"x")
    assert "has a name that is not UTF-8, which object stores do not know" in refused(staging, source)
    bad.unlink()
    prefix = len(b"some/folder/checkpoints/1-1-1/")
    for length, fits in ((1024, True), (1025, False)):
        path = "/".join(["d" * 200] * 4)
        path += "/" + "e" * (length - prefix - len(path) - 1)
        write_tree(source, {path: b"x"})
        if fits:
            staging.stage(ID, [Source(0, str(source), False)], {})
            staging.drop(ID)
        else:
            assert "would be stored under a key of 1025 bytes; S3 allows 1024" in refused(staging, source)


def test_names_in_two_cases_sparse_and_empty_files_and_a_folder_named_like_ours_further_down(
    tmp_path: Path, staging: Staging
) -> None:
    files = {"Model": b"1", "model": b"2", "empty": b"", "sub/.trainjob/manifest.json": b"the user's own", "a\nb": b"3"}
    source = write_tree(tmp_path / "s", {**files, ".trainjob/manifest.json": b"left from an earlier checkpoint"})
    with open(source / "sparse", "wb") as sparse:
        sparse.truncate(50_000_000)
    staging.stage(ID, [Source(0, str(source), False)], {})
    assert staged(staging) == {**files, "sparse": bytes(50_000_000)}


@pytest.mark.parametrize("may_move", [True, False])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, may_move: bool) -> None:
    """A move would not notice, and nobody could store it then."""

    def work() -> None:
        source = write_tree(Path(folder) / "s", {"a": b"1", "secret": b"2"})
        (source / "secret").chmod(0)
        with pytest.raises(
            StagingError, match=r"cannot read .*/secret: Permission denied; likely user [0-9]+ may not read it"
        ):
            Staging(str(Path(folder) / "staging")).stage(ID, [Source(0, str(source), may_move)], {})

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        pid = os.fork()
        if pid == 0:  # root reads everything: another user, in a process of its own
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                work()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_devices_are_refused(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "s", {"a": b"1"})
    try:
        os.mknod(source / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device needs root")
    assert "null is a device: only files" in refused(staging, source)


def write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"X")


def write_through_a_map(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0:1] = b"X"


def put_back_in_time(path: Path) -> None:
    before = path.stat()
    write_in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"X" * path.stat().st_size)
    os.replace(other, path)


@pytest.mark.parametrize("change", [write_in_place, write_through_a_map, put_back_in_time, replace, Path.unlink])
@pytest.mark.parametrize("may_move", [False, True])
def test_a_kept_file_that_somebody_wrote_to_is_not_held_any_more(
    tmp_path: Path, staging: Staging, change: Callable[[Path], None], may_move: bool
) -> None:
    source = write_tree(tmp_path / "saved", {"model.pt": b"model", "optim.pt": b"optim"})
    staging.stage(ID, [Source(0, str(source), may_move)], {1: b"state"})
    files = {"model.pt": (5, 0), "optim.pt": (5, 0), layout.state_path(1): (5, 1)}
    staging.release(note_of(str(ID), files))
    (whole,) = Staging(staging.root).released()
    assert sorted(whole.paths) == sorted(files) and whole.ranks == (0, 1)
    change(Path(staging.files_dir(ID), "model.pt"))
    (held,) = Staging(staging.root).released()
    assert sorted(held.paths) == sorted({*files} - {"model.pt"}), "its size is the same, its bytes are not"
    assert held.ranks == (1,)


def test_kept_files_are_read_only_for_everybody(tmp_path: Path, staging: Staging) -> None:
    source = write_tree(tmp_path / "saved", {"copied": b"x"})
    given = write_tree(tmp_path / "given", {"moved": b"y"})
    (given / "moved").chmod(0o660)
    staging.stage(ID, [Source(0, str(source), False), Source(1, str(given), True)], {0: b"state"})
    kept = Path(staging.files_dir(ID))
    modes = {path.name: path.stat().st_mode & 0o777 for path in kept.rglob("*") if path.is_file()}
    assert all(not mode & 0o222 for mode in modes.values()), modes
    assert modes["moved"] == 0o440, "who may read it is the user's choice"
    assert (source / "copied").stat().st_mode & 0o200, "the rank's own file stays as it is"


def test_what_was_kept_before_the_kernel_started_anew_is_not_believed(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose bytes were still in memory then have their size, and zeros."""
    source = write_tree(tmp_path / "saved", {"model.pt": b"model"})
    staging.stage(ID, [Source(0, str(source), False)], {})
    staging.release(note_of(str(ID), {"model.pt": (5, 0)}))
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(stamp, "_BOOT", str(boot))
    after = Staging(staging.root)
    assert after.released() == [] and after.held(ID) is None
    assert after.sweep() == [str(ID)]


def test_staging_that_nobody_wants_any_more_ends_between_blocks_and_leaves_nothing(
    tmp_path: Path, staging: Staging
) -> None:
    source = tmp_path / "saved"
    source.mkdir()
    for name in "ab":
        with (source / name).open("wb") as file:
            file.truncate(256 << 20)
    asked = []

    def cancel() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(StagingError) as refused:
        staging.stage(ID, [Source(0, str(source), False)], {}, cancel)
    assert refused.value.kind == errors.STOPPED
    assert len(asked) == 4, "within the first of two files"
    assert os.listdir(staging.root) == [] and (source / "b").exists()
