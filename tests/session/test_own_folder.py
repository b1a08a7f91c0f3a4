"""Folders that user code is given: what strangers do in one never reaches what was saved."""

from __future__ import annotations

import gc
import mmap
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support import s3
from support.checkpoint import write_tree
from support.reading import committed
from trainjob import Checkpoint
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.session import own_folder
from trainjob.session.contents import Brought
from trainjob.session.own_folder import OwnFolder

FILES = {"model.pt": b"model" * 100, "sub/optim.pt": b"optim" * 100, "empty": b""}
NAMES = sorted(FILES)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    own_folder.forget()
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = write_tree(tmp_path / "kept", FILES)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def save_over(folder: Path) -> None:
    (folder / "model.pt").write_bytes(b"new")


def save_beside_and_rename(folder: Path) -> None:
    (folder / "model.pt.tmp").write_bytes(b"new")
    os.replace(folder / "model.pt.tmp", folder / "model.pt")


def write_like_hdf5(folder: Path) -> None:
    with (folder / "model.pt").open("r+b") as file:
        file.seek(10)
        file.write(b"new")


def write_through_a_map(folder: Path) -> None:
    with (folder / "model.pt").open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0:3] = b"new"


def append_to_a_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.pt", "a") as archive:
        archive.writestr("data/0", b"new")


def copy_a_tree_onto_it(folder: Path) -> None:
    other = write_tree(folder.parent / "other", {"model.pt": b"new", "sub/optim.pt": b"new"})
    shutil.copytree(other, folder, dirs_exist_ok=True)


def make_writable_and_write(folder: Path) -> None:
    (folder / "model.pt").chmod(0o666)
    save_over(folder)


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.pt", 3)


def remove_everything(folder: Path) -> None:
    shutil.rmtree(folder)


def start_over(folder: Path) -> None:
    shutil.rmtree(folder)
    write_tree(folder, {"model.pt": b"new"})


def other_program(folder: Path) -> None:
    subprocess.run(
        ["sh", "-c", 'echo new > "$1/model.pt"; rm "$1/empty"; mv "$1/sub" "$1/gone"', "sh", folder], check=True
    )


DEEDS = [
    save_over, save_beside_and_rename, write_like_hdf5, write_through_a_map, append_to_a_zip, copy_a_tree_onto_it,
    make_writable_and_write, truncate, remove_everything, start_over, other_program,
]  # fmt: skip


@pytest.mark.parametrize("deed", DEEDS)
def test_whatever_is_done_in_it_is_done_to_it_alone(kept: Path, deed: Callable[[Path], None]) -> None:
    made = OwnFolder(object, str(kept), NAMES, expendable=True)
    assert read(Path(made.path)) == FILES and made.is_as_it_was()
    deed(Path(made.path))
    assert read(kept) == FILES
    assert all(stat.S_IMODE((kept / name).stat().st_mode) == 0o444 for name in FILES)
    assert not made.is_as_it_was()


@pytest.mark.parametrize("deed", DEEDS)
def test_it_is_noticed_within_a_tick_of_the_clock_too(
    kept: Path, monkeypatch: pytest.MonkeyPatch, deed: Callable[[Path], None]
) -> None:
    """Where the kernel's clock for files stands still between the copy and the write."""
    stands, look = time.time_ns(), own_folder._look

    def looked(path: str, follow: bool) -> own_folder.Look:
        inode, *times = look(path, follow)
        return (inode, min(times[0], stands), min(times[1], stands))

    monkeypatch.setattr(own_folder, "_look", looked)
    made = OwnFolder(object, str(kept), NAMES, expendable=True)
    assert made.is_as_it_was()
    deed(Path(made.path))
    assert not made.is_as_it_was()


@pytest.mark.parametrize("deed", DEEDS)
def test_a_committed_checkpoint_stays_as_it_is_and_the_next_who_asks_gets_it(
    tmp_path: Path, deed: Callable[[Path], None]
) -> None:
    store = PathStore(str(tmp_path / "job"))
    uri = committed(store, tmp_path / "staged", {path: (data, 0) for path, data in FILES.items()})
    checkpoint = Checkpoint(uri)
    with checkpoint.as_directory() as folder:
        deed(Path(folder))
    with checkpoint.as_directory() as folder:
        assert read(Path(folder)) == FILES
    assert {name: Path(uri, name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("large", [False, True], ids=["copied", "linked"])
@pytest.mark.parametrize("deed", DEEDS)
def test_what_was_downloaded_stays_as_it_is_whatever_is_done_in_a_folder_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: Callable[[Path], None], large: bool
) -> None:
    if large:
        monkeypatch.setattr(own_folder, "COPIED_BYTES", 0)
    monkeypatch.setattr(own_folder.OwnFolder, "_reflinked", lambda self, source, target: False)
    s3.use(monkeypatch, s3.endpoint())
    uri = committed(open_store(s3.fresh_uri()), tmp_path / "staged", {path: (data, 0) for path, data in FILES.items()})
    checkpoint = Checkpoint(uri)
    with checkpoint.as_directory() as folder, checkpoint.as_directory() as same:
        assert same == folder
        deed(Path(folder))
    with checkpoint.open("model.pt") as file:
        assert file.read() == FILES["model.pt"]
    with checkpoint.as_directory() as folder:
        assert read(Path(folder)) == FILES


def test_what_is_large_is_a_link_as_long_as_someone_else_has_it(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_folder, "COPIED_BYTES", 600)
    made = OwnFolder(object, str(kept), NAMES, expendable=True)
    assert [name for name in NAMES if Path(made.path, name).is_symlink()] == ["sub/optim.pt"]
    assert read(Path(made.path)) == FILES
    save_beside_and_rename(Path(made.path))
    (Path(made.path) / "sub/optim.pt").unlink()
    assert read(kept) == FILES


def test_what_is_large_and_nobody_else_has_is_copied_where_rights_stop_nobody(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_folder, "COPIED_BYTES", 0)
    made = OwnFolder(object, str(kept), NAMES, expendable=False)
    for name in ("model.pt", "sub/optim.pt"):
        assert Path(made.path, name).is_symlink() != os.access(kept / name, os.W_OK)


def test_a_write_through_a_link_is_noticed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_folder, "COPIED_BYTES", 0)
    made = OwnFolder(object, str(kept), NAMES, expendable=True)
    (kept / "model.pt").chmod(0o666)
    save_over(Path(made.path))
    assert not made.is_as_it_was()


def test_who_changed_its_folder_gets_a_new_one_with_what_the_agent_brings(kept: Path, tmp_path: Path) -> None:
    asked: list[tuple[object, bool]] = []

    def fetch(paths: list[str] | None, apart: bool = False) -> str:
        asked.append((paths, apart))
        return str(kept)

    listing = tmp_path / "listing.json"
    listing.write_text('["model.pt", "sub/optim.pt", "empty", ".trainjob/rank-0.state"]')
    brought = Brought(str(listing), fetch)
    first = Path(brought.folder())
    assert read(first) == FILES and brought.folder() == str(first)
    save_over(first)
    second = Path(brought.folder())
    assert second != first and read(second) == FILES
    assert asked == [(None, True), (None, True)]


@pytest.mark.parametrize(
    "reads",
    [
        lambda made: made.open("model.pt").read(),
        lambda made: Path(made.to_directory(), "model.pt").read_bytes(),
        lambda made: Path(made.path, "model.pt").read_bytes(),
    ],
    ids=["open", "to_directory", "path"],
)
def test_what_leaves_the_staging_area_just_then_is_brought_again(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Callable[[Checkpoint], bytes]
) -> None:
    """Another thread's report() released a newer one between the agent's answer and the first byte."""
    links = tmp_path / "links"
    links.mkdir()
    (links / "model.pt").symlink_to(tmp_path / "left")
    answers = [links, kept]

    def fetch(paths: list[str] | None, apart: bool = False) -> str:
        return str(answers.pop(0))

    listing = tmp_path / "listing.json"
    listing.write_text('["model.pt"]')
    brought = Brought(str(listing), fetch)
    looks = [True, False]  # it was there when it was looked
    monkeypatch.setattr(brought, "_stays", lambda path: looks.pop(0))
    assert reads(Checkpoint.from_restored({"id": "1-1-1"}, brought)) == FILES["model.pt"]


def test_links_of_a_checkpoint_that_is_no_longer_the_newest_are_asked_for_again(kept: Path, tmp_path: Path) -> None:
    links, old = tmp_path / "links", False
    links.mkdir()
    (links / "model.pt").symlink_to(kept / "model.pt")

    def fetch(paths: list[str] | None, apart: bool = False) -> str:
        return str(kept if old else links)

    listing = tmp_path / "listing.json"
    listing.write_text('["model.pt"]')
    brought = Brought(str(listing), fetch, lambda: old)
    assert brought.file("model.pt") == str(links / "model.pt")
    old = True
    assert brought.file("model.pt") == str(kept / "model.pt")


def test_folders_whose_handle_is_gone_go_with_the_next_one_and_all_go_with_the_process(
    kept: Path, temporary: Path
) -> None:
    class Owner:
        pass

    owner = Owner()
    first = OwnFolder(owner, str(kept), NAMES, expendable=True).path
    second = OwnFolder(Owner(), str(kept), NAMES, expendable=True).path
    gc.collect()
    assert os.path.isdir(second), "`torch.load(get_checkpoint().path)` keeps no handle"
    OwnFolder(owner, str(kept), NAMES, expendable=True)
    assert os.path.isdir(first) and not os.path.exists(second)
    script = (
        "import sys; from trainjob.session.own_folder import OwnFolder; "
        f"print(OwnFolder(sys, {str(kept)!r}, {NAMES!r}, True).path)"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], check=True, text=True, capture_output=True, env={**os.environ, "TMPDIR": str(temporary)}
    ).stdout.strip()  # fmt: skip
    assert made.startswith(str(temporary)) and not os.path.exists(made)


def test_what_is_copied_out_may_be_written_to(tmp_path: Path) -> None:
    uri = committed(PathStore(str(tmp_path / "job")), tmp_path / "staged", {"model.pt": (b"model", 0)})
    target = Checkpoint(uri).to_directory(str(tmp_path / "copy"))
    assert stat.S_IMODE(Path(target, "model.pt").stat().st_mode) & 0o200
    assert not stat.S_IMODE(Path(uri, "model.pt").stat().st_mode) & 0o222
    Checkpoint(uri).to_directory(target)
