"""Files of a removed checkpoint that wait to be written over: only what nobody has any more, of one checkpoint at a time,
and where there is room for more.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import note_of, write_tree
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.merge import merge
from trainjob.checkpoint.staging.area import Staging
from trainjob.checkpoint.staging.plan import Source
from trainjob.checkpoint.staging.recycling import LEAST, Recycling
from trainjob.checkpoint.stores import mounts

FIRST, SECOND = CheckpointId(1, 1, 1), CheckpointId(1, 1, 2)
DICT, SHARD = "checkpoint.pkl", "__0_0.distcp"
PLENTY = 1 << 50
Keep = Callable[..., Path]


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests' folders lie."""
    monkeypatch.setattr(mounts, "kind_of", lambda _: "ext4")


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    return tmp_path / "work" / "recycled"


@pytest.fixture
def staging(tmp_path: Path, waiting: Path) -> Staging:
    return Staging(str(tmp_path / "work" / "staging"), recycling=Recycling(str(waiting), lambda: PLENTY))


def keep(staging: Staging, folder: Path, id_: CheckpointId, files: dict[str, bytes], may_move: bool = True) -> Path:
    """Staged and released; where its files lie."""
    write_tree(folder, files)
    result = staging.stage(id_, [Source(0, str(folder), may_move)], {0: b"state"})
    staging.release(note_of(str(id_), {})._replace(files=merge(result.files).files))
    return Path(staging.files_dir(id_))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("may_move", [True, False])
@pytest.mark.parametrize("name", [DICT, SHARD])
def test_a_large_file_that_is_saved_each_time_waits_to_be_written_over(
    tmp_path: Path, staging: Staging, waiting: Path, name: str, may_move: bool
) -> None:
    files = keep(staging, tmp_path / "a", FIRST, {name: bytes(LEAST), "model.pt": bytes(LEAST)}, may_move)
    inode = (files / name).stat().st_ino
    staging.drop(FIRST)
    assert names(waiting) == [name]
    assert (waiting / name).stat().st_ino == inode
    assert (waiting / name).stat().st_mode & 0o200, "who takes it writes to it"
    assert os.listdir(staging.root) == []


@pytest.mark.parametrize(
    "files",
    [{DICT: bytes(LEAST - 1)}, {"model.pt": bytes(LEAST)}, {f"below/{DICT}": bytes(LEAST)}, {"__0_0": bytes(LEAST)}],
    ids=["small", "a name of its own", "in a folder", "no shard"],
)
def test_what_nobody_will_ask_for_goes(
    tmp_path: Path, staging: Staging, waiting: Path, files: dict[str, bytes]
) -> None:
    keep(staging, tmp_path / "a", FIRST, files)
    staging.drop(FIRST)
    assert names(waiting) == [] and os.listdir(staging.root) == []


def opened(path: Path) -> Any:
    return open(path, "rb")


def mapped(path: Path) -> Any:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def written_to(path: Path) -> Any:
    os.chmod(path, 0o644)
    return open(path, "r+b")


HELD = 'import mmap, sys\nwith open(sys.argv[1], "rb") as file:\n    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n'


def elsewhere(path: Path) -> Any:
    """Another process has it mapped."""
    command = [sys.executable, "-c", HELD + 'print("held", flush=True)\nsys.stdin.read()', str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize("how", [opened, mapped, written_to, elsewhere])
def test_what_somebody_has_open_or_mapped_is_never_written_over(
    tmp_path: Path, staging: Staging, waiting: Path, how: Callable[[Path], Any]
) -> None:
    files = keep(staging, tmp_path / "a", FIRST, {DICT: b"1" * LEAST, SHARD: b"2" * LEAST})
    held = how(files / DICT)
    try:
        staging.drop(FIRST)
        assert names(waiting) == [SHARD], "the other one is nobody's"
        assert os.listdir(staging.root) == []
    finally:
        if isinstance(held, subprocess.Popen):
            held.communicate()
        else:
            held.close()


OVERLAY = """
import ctypes, os, sys
from trainjob.checkpoint.staging.recycling import LEAST, Recycling
from trainjob_api import contract
folder = sys.argv[1]
for name in ("lower", "upper", "work", "seen"):
    os.mkdir(f"{folder}/{name}")
libc = ctypes.CDLL(None, use_errno=True)
layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
if libc.mount(b"overlay", f"{folder}/seen".encode(), b"overlay", 0, layers.encode()):
    sys.exit(77)
removed = f"{folder}/seen/removed"
os.mkdir(removed)
with open(f"{removed}/{contract.DICT_FILE}", "wb") as file:
    file.write(bytes(LEAST))
file = os.open(f"{removed}/{contract.DICT_FILE}", os.O_RDONLY)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
assert libc.mmap(None, LEAST, 1, 2, file, 0) != ctypes.c_void_p(-1).value  # as torch.load(mmap=True) has it
os.close(file)
Recycling(f"{folder}/seen/recycled", lambda: 1 << 50).keep(removed)
print(os.path.exists(f"{folder}/seen/recycled/{contract.DICT_FILE}"))
"""


def test_what_is_mapped_on_an_overlay_is_never_written_over(tmp_path: Path) -> None:
    """The container's own file system: what is mapped there is the file of a layer below, which no lease asks for."""
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", OVERLAY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or done.returncode == 77:
        pytest.skip(f"no overlay can be mounted here: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize(("kind", "waits"), [("ext4", True), ("overlay", False), ("fuse.x", False), (None, False)])
def test_nothing_waits_where_a_mapping_may_not_count_as_an_open_file(
    tmp_path: Path, staging: Staging, waiting: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, waits: bool
) -> None:
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST)})
    monkeypatch.setattr(mounts, "kind_of", lambda _: kind)
    staging.drop(FIRST)
    assert (names(waiting) != []) == waits and os.listdir(staging.root) == []


def test_a_file_of_two_names_is_somebodys(tmp_path: Path, staging: Staging, waiting: Path) -> None:
    files = keep(staging, tmp_path / "a", FIRST, {DICT: b"1" * LEAST})
    os.link(files / DICT, tmp_path / "mine")
    staging.drop(FIRST)
    assert names(waiting) == [] and (tmp_path / "mine").read_bytes() == b"1" * LEAST


def test_a_link_of_that_name_is_let_alone(tmp_path: Path, waiting: Path) -> None:
    folder = write_tree(tmp_path / "a", {"mine": bytes(LEAST)})
    os.symlink(folder / "mine", folder / DICT)
    waiting.parent.mkdir()
    Recycling(str(waiting), lambda: PLENTY).keep(str(folder))
    assert names(waiting) == []


def test_it_is_one_checkpoints_at_a_time(tmp_path: Path, staging: Staging, waiting: Path) -> None:
    keep(staging, tmp_path / "a", FIRST, {DICT: b"1" * LEAST, SHARD: b"1" * LEAST})
    keep(staging, tmp_path / "b", SECOND, {DICT: b"2" * LEAST})
    staging.drop(FIRST)
    assert names(waiting) == sorted([DICT, SHARD])
    staging.drop(SECOND)
    assert names(waiting) == [DICT] and (waiting / DICT).read_bytes() == b"2" * LEAST


def test_it_ends_with_a_checkpoint_of_other_files(tmp_path: Path, staging: Staging, waiting: Path) -> None:
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST)})
    keep(staging, tmp_path / "b", SECOND, {"model.pt": bytes(LEAST)})
    staging.drop(FIRST)
    staging.drop(SECOND)
    assert names(waiting) == []


@pytest.mark.parametrize(("room", "waits"), [(4 * LEAST, True), (4 * LEAST - 1, False), (None, False)])
def test_nothing_waits_where_memory_has_no_room_for_twice_as_much_again(
    tmp_path: Path, waiting: Path, room: int | None, waits: bool
) -> None:
    staging = Staging(str(tmp_path / "work" / "staging"), recycling=Recycling(str(waiting), lambda: room))
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST), SHARD: bytes(LEAST)})
    staging.drop(FIRST)
    assert (names(waiting) != []) == waits and os.listdir(staging.root) == []


@pytest.mark.parametrize("larger", [1.0, 1.3, 1.5, 1.9, 2.0, 2.1, 4.0])
def test_a_volume_for_two_of_the_largest_checkpoint_still_takes_it(
    tmp_path: Path, waiting: Path, larger: float
) -> None:
    """Small ones by from_dict each hundred steps, and each epoch a larger one of other files."""
    small, large = 10 * LEAST, int(larger * 10 * LEAST)
    left = 2 * large - 2 * small  # beside the newest and the one that leaves
    staging = Staging(str(tmp_path / "work" / "staging"), recycling=Recycling(str(waiting), lambda: left))
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(small)})
    staging.drop(FIRST)
    assert large <= left + (0 if names(waiting) else small)


def test_nothing_waits_where_the_volume_has_no_room_for_twice_as_much_again(
    tmp_path: Path, staging: Staging, waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST)})
    real = os.statvfs

    def full(path: Any) -> Any:
        found = list(real(path))
        found[4] = 0
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    staging.drop(FIRST)
    assert names(waiting) == []


@pytest.mark.parametrize("call", ["open", "fstat", "lstat", "chmod", "statvfs", "makedirs", "listdir", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EPERM])
def test_whatever_fails_it_goes_as_ever(
    tmp_path: Path, staging: Staging, waiting: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    files = keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST)})
    recycling = Recycling(str(waiting), lambda: PLENTY)
    with monkeypatch.context() as patch:

        def fails(*_: Any, **__: Any) -> Any:
            raise OSError(code, os.strerror(code))

        patch.setattr(os, call, fails)
        recycling.keep(str(files))
    assert names(waiting) == [] and (files / DICT).exists()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES, errno.ENOLCK, errno.EAGAIN])
def test_where_no_lease_is_granted_nothing_waits(
    tmp_path: Path, staging: Staging, waiting: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    keep(staging, tmp_path / "a", FIRST, {DICT: bytes(LEAST)})
    real = fcntl.fcntl

    def refused(file: int, what: int, *rest: Any) -> Any:
        if what == fcntl.F_SETLEASE:
            raise OSError(code, os.strerror(code))
        return real(file, what, *rest)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    staging.drop(FIRST)
    assert names(waiting) == [] and os.listdir(staging.root) == []


def test_who_opens_it_just_then_ends_nobody(tmp_path: Path) -> None:
    """The kernel tells the holder of a lease by a signal that would end it."""
    program = """
import fcntl, os, sys, threading
from trainjob.checkpoint.staging import recycling
real = fcntl.fcntl
def meanwhile(file, what, *rest):
    if (what, *rest) == (fcntl.F_SETLEASE, fcntl.F_UNLCK):
        try:
            os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)  # breaks the lease
        except BlockingIOError:
            pass
    return real(file, what, *rest)
fcntl.fcntl = meanwhile
print(recycling._is_nobodys(sys.argv[1]))
"""
    path = tmp_path / DICT
    path.write_bytes(bytes(10))
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
