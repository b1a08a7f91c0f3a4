"""Staging on a file system that can reflink: what a script keeps is staged at once, by whichever way is sooner, and
never changes with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support import held_calls
from support.agent_rig import Rig
from support.checkpoint import read_tree, write_tree
from support.held_calls import HeldCalls
from support.reflink_fs import extents, fill, is_reflink, mounted
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.staging import page_cache
from trainjob.checkpoint.staging.area import Staging
from trainjob.checkpoint.staging.cloning import clone
from trainjob.checkpoint.staging.plan import Source

ID = CheckpointId(1, 1, 1)
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path) as root:
        yield root


@pytest.fixture
def staging(disk: Path) -> Staging:
    return Staging(str(disk / "staging"))


@pytest.fixture
def at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has room for a copy, whatever else writes on this machine meanwhile."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_dirty 7\nnr_writeback 3\nnr_dirty_threshold 1000000\nnr_dirty_background_threshold 500000\n")
    monkeypatch.setattr(page_cache, "_VMSTAT", str(vmstat))


def stage(staging: Staging, directory: Path, *, may_move: bool = False) -> Path:
    """The folder in which the files lie."""
    staging.stage(ID, [Source(0, str(directory), may_move)], {})
    return Path(staging.files_dir(ID))


def on_disk(directory: Path) -> Path:
    """The same directory, its files written out."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return directory


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def test_what_is_on_the_disk_is_staged_by_reflink(disk: Path, staging: Staging) -> None:
    files = {"model.pt": os.urandom(64 * MIB), "deep/er/optim ü": os.urandom(MIB + 7), "small": b"s", "empty": b""}
    source = on_disk(write_tree(disk / "source", files))
    assert not any(extent.shared for extent in extents(source / "model.pt"))
    before = free(disk)
    folder = stage(staging, source)
    assert before - free(disk) < MIB
    for name in ("model.pt", "deep/er/optim ü", "small"):
        assert is_reflink(source / name, folder / name)
    assert read_tree(folder) == read_tree(source) == files
    assert all((folder / name).stat().st_nlink == 1 for name in files)


@pytest.mark.usefixtures("at_rest")
def test_what_was_written_just_now_is_copied_as_a_reflink_waits_for_the_disk(
    disk: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel writes it out whenever it likes: it says what it said a moment ago.
    monkeypatch.setattr(page_cache, "unwritten", lambda file: os.fstat(file).st_size)
    files = {"model.pt": os.urandom(64 * MIB), "deep/er/optim ü": os.urandom(MIB + 7), "empty": b""}
    source = write_tree(disk / "source", files)
    folder = stage(staging, source)
    assert not any(extent.shared for name in files for extent in extents(folder / name))
    assert read_tree(folder) == read_tree(source) == files


def test_of_which_little_is_not_on_the_disk_yet_is_reflinked(disk: Path, staging: Staging) -> None:
    source = on_disk(write_tree(disk / "source", {"model.pt": os.urandom(64 * MIB)})) / "model.pt"
    with source.open("r+b", buffering=0) as file:
        file.write(os.urandom(2 * MIB))
        if page_cache.unwritten(file.fileno()) != 2 * MIB:
            pytest.skip("this kernel does not say what is not on the disk (cachestat, since Linux 6.5)")
    assert is_reflink(source, stage(staging, source.parent) / "model.pt")


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("hours", [0, 1, -1])
def test_where_the_kernel_does_not_say_a_files_age_does(
    disk: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setattr(page_cache, "_CACHESTAT", 99999)  # no such call: what an older kernel answers
    source = on_disk(write_tree(disk / "source", {"model.pt": os.urandom(MIB)})) / "model.pt"
    then = source.stat().st_mtime + 3600 * hours
    os.utime(source, (then, then))
    assert is_reflink(source, stage(staging, source.parent) / "model.pt") == (hours != 0)


@pytest.mark.parametrize("pages", [300, 100, None])
def test_a_copy_for_which_memory_has_no_room_is_no_sooner(
    disk: Path, staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int | None
) -> None:
    """Writers are held up from halfway between the kernel's two thresholds on; the file has 256 pages."""
    counted = {
        "nr_dirty": 7,
        "nr_writeback": 3,
        "nr_dirty_threshold": 2 * (pages or 0),
        "nr_dirty_background_threshold": 20,
    }
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("".join(f"{name} {value}\n" for name, value in counted.items()) if pages else "nr_dirty 7\n")
    monkeypatch.setattr(page_cache, "_VMSTAT", str(vmstat))
    source = write_tree(disk / "source", {"model.pt": os.urandom(256 * os.sysconf("SC_PAGE_SIZE"))}) / "model.pt"
    assert is_reflink(source, stage(staging, source.parent) / "model.pt") == (pages != 300)


def test_a_directory_that_is_given_away_is_moved(disk: Path, staging: Staging) -> None:
    source = write_tree(disk / "source", {"model.pt": os.urandom(MIB)})
    inode = (source / "model.pt").stat().st_ino
    moved = stage(staging, source, may_move=True) / "model.pt"
    assert moved.stat().st_ino == inode and not any(extent.shared for extent in extents(moved))


def in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(MIB + 100)
        file.write(b"again" * MIB)


def emptied_first(path: Path) -> None:
    path.write_bytes(b"again" * MIB)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"again" * MIB)
    os.replace(other, path)


def cut_short(path: Path) -> None:
    os.truncate(path, 5000)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("again", [in_place, emptied_first, replaced, cut_short, removed])
def test_a_loop_that_saves_to_the_same_path_again_does_not_change_the_staged_copy(
    disk: Path, staging: Staging, again: Callable[[Path], None]
) -> None:
    first = os.urandom(8 * MIB)
    source = on_disk(write_tree(disk / "source", {"model.pt": first}))
    staged = stage(staging, source) / "model.pt"
    assert is_reflink(source / "model.pt", staged)
    again(source / "model.pt")
    assert staged.read_bytes() == first


def test_blocks_that_are_not_written_again_stay_shared(disk: Path, staging: Staging) -> None:
    source = on_disk(write_tree(disk / "source", {"model.pt": os.urandom(8 * MIB)}))
    staged = stage(staging, source) / "model.pt"
    in_place(source / "model.pt")
    again, kept = extents(source / "model.pt"), extents(staged)
    assert {extent.shared for extent in again} == {extent.shared for extent in kept} == {True, False}
    assert again[0] == kept[0] and again[-1] == kept[-1]


def test_on_a_full_disk_a_reflink_fits_where_a_copy_does_not(tmp_path: Path, disk: Path, staging: Staging) -> None:
    files = {"model.pt": os.urandom(32 * MIB)}
    here, elsewhere = write_tree(disk / "source", files), write_tree(tmp_path / "elsewhere", files)
    fill(disk, leave=8 * MIB)
    with pytest.raises(StagingError, match="No space left on device; likely the file system is full") as caught:
        stage(staging, elsewhere)
    assert caught.value.kind == errors.FULL and os.listdir(staging.root) == []
    folder = stage(staging, here)
    assert is_reflink(here / "model.pt", folder / "model.pt")
    assert read_tree(folder) == files


def test_a_reflink_that_does_not_fit_fails_and_is_whole_once_there_is_space(disk: Path) -> None:
    """The list of a file's pieces takes space too: of one in many pieces only the first are shared before the disk
    is full.
    """
    with (disk / "source").open("w+b", buffering=0) as source, (disk / "target").open("w+b", buffering=0) as target:
        for number in range(2000):
            os.pwrite(source.fileno(), b"%d" % number, number * 8192)
        for file in (source, target):
            os.fsync(file.fileno())
        fill(disk, leave=0)
        with pytest.raises(OSError, match="No space left on device"):
            clone(source.fileno(), target.fileno())
        assert 0 < os.fstat(target.fileno()).st_size < os.fstat(source.fileno()).st_size
        (disk / "filling").unlink()
        for file in (source, target):
            file.seek(0)
        assert clone(source.fileno(), target.fileno()) == os.fstat(source.fileno()).st_size
    assert (disk / "target").read_bytes() == (disk / "source").read_bytes()


@pytest.mark.parametrize("may_move", [False, True])
@pytest.mark.parametrize("onto", ["it", "another"])
def test_between_two_file_systems_files_are_copied(tmp_path: Path, disk: Path, onto: str, may_move: bool) -> None:
    files = {"model.pt": os.urandom(4 * MIB), "deep/er": b"d", "empty": b""}
    there, here = (tmp_path, disk) if onto == "it" else (disk, tmp_path)
    source = on_disk(write_tree(there / "source", files))
    folder = stage(Staging(str(here / "staging")), source, may_move=may_move)
    assert read_tree(folder) == files
    assert read_tree(source) == ({} if may_move else files)
    on_xfs = folder if onto == "it" else source
    assert not any(extent.shared for path in on_xfs.rglob("*") if path.is_file() for extent in extents(path))


def test_between_two_that_can_reflink_files_are_copied(tmp_path: Path, disk: Path, staging: Staging) -> None:
    files = {"model.pt": os.urandom(4 * MIB)}
    (tmp_path / "second").mkdir()
    with mounted(tmp_path / "second") as other:
        folder = stage(staging, on_disk(write_tree(other / "source", files)))
        assert read_tree(folder) == files and not any(extent.shared for extent in extents(folder / "model.pt"))


SCRIPT = """
import os, pathlib, time, trainjob
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)
path = pathlib.Path("saved", "model.pt")
path.parent.mkdir()
with path.open("wb") as file:
    file.write(b"first" * 1_000_000)
    file.flush()
    os.fsync(file.fileno())
trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory("saved"), step=1)
pathlib.Path("reported").touch()
until("save again")
with path.open("r+b") as file:
    file.write(b"AGAIN" * 1_000_000)
pathlib.Path("saved again").touch()
until("end")
"""


@pytest.mark.slow
def test_an_agent_stores_what_was_reported_although_the_script_saves_to_the_same_file_again(
    tmp_path: Path, disk: Path
) -> None:
    held = HeldCalls()
    env = held.environment("trainjob.checkpoint.storage_child.child", "mkdir", "checkpoints/1-1-1", after=False)
    with (
        closing(held),
        Rig(disk, script=SCRIPT, agents=1, storage=tmp_path / "store", entry=held_calls.AGENT, env=env) as rig,
    ):
        rig.run(1)
        assert held.wait(), rig.everything()
        rig.wait((rig.work / "reported").exists, "reported")
        (staged,) = rig.work_dir(0).rglob("1-1-1/files/model.pt")
        assert is_reflink(rig.work / "saved/model.pt", staged)
        (rig.work / "save again").touch()
        rig.wait((rig.work / "saved again").exists, "saved again")
        held.let_go()
        (rig.work / "end").touch()
        rig.wait(rig.completed, "completed")
    assert (rig.work / "saved/model.pt").read_bytes() == b"AGAIN" * 1_000_000
    assert (tmp_path / "store/checkpoints/1-1-1/model.pt").read_bytes() == b"first" * 1_000_000
