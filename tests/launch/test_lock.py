"""One job of a name at a time; the lock outlives a killed launcher in the processes that inherited it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launchers import WAITS, local_launcher
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import lock, scratch
from trainjob.launch.local.lock import JobLock, JobRunning


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield


def test_a_second_launcher_is_told_who_has_it(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    with JobLock(a):
        with pytest.raises(LaunchError, match=rf"running already \(launcher pid {os.getpid()}\)"):
            JobLock(a)
        with JobLock(b):
            pass
    assert not any(map(os.path.exists, (lock.lock_path(a), lock.lock_path(b)))) and list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_launcher_lives_in_its_children_and_is_waited_for(tmp_path: Path) -> None:
    code = (
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[held.descriptor])\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    folder = str(tmp_path / "a")
    launcher, first = local_launcher(folder, code)
    orphan = int(first)
    try:
        launcher.kill()  # not reaped yet: a zombie is no launcher that one could wait for
        os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LaunchError, match="earlier launcher still hold"):
            JobLock(folder, wait_s=0.2)
        told: list[str] = []

        def end_it(text: str) -> None:
            told.append(text)
            os.kill(orphan, signal.SIGKILL)

        with JobLock(folder, wait_s=120, on_wait=end_it):
            assert len(told) == 1
    finally:
        launcher.communicate()
        if not told:
            os.kill(orphan, signal.SIGKILL)


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    first = JobLock(folder)
    waiting = os.open(first.path, os.O_RDWR)
    first.release()
    try:
        with JobLock(folder) as second:
            assert not os.path.samestat(os.fstat(waiting), os.stat(second.path))
    finally:
        os.close(waiting)
    assert not os.path.exists(lock.lock_path(folder))


def test_a_shell_with_another_temporary_folder_sees_the_lock(tmp_path: Path) -> None:
    """As a batch system's TMPDIR is: a second run of the name trained beside the first one."""
    folder, other = str(tmp_path / "a"), tmp_path / "other"
    other.mkdir()
    launcher, _ = local_launcher(folder, WAITS, TMPDIR=str(other))
    try:
        with pytest.raises(JobRunning, match=rf"launcher pid {launcher.pid}\)"):
            JobLock(folder)
        assert lock.held(folder)
    finally:
        launcher.communicate()
    assert not lock.held(folder)


def test_a_lock_is_seen_of_its_holder_where_its_file_is_not(tmp_path: Path) -> None:
    """A service has a /tmp of its own, and old files are cleared away from one that is shared."""
    folder, own = str(tmp_path / "a"), tmp_path / "own"
    own.mkdir()
    launcher, path = local_launcher(folder, WAITS, at=str(own))
    try:
        assert os.path.dirname(path) == str(own) and not lock.held(folder)
        assert lock.holds(launcher.pid, folder) and not lock.holds(launcher.pid, str(tmp_path / "b"))
        os.unlink(path)
        assert lock.holds(launcher.pid, folder)
        assert not lock.holds(os.getpid(), folder)
    finally:
        launcher.communicate()
    assert not lock.holds(launcher.pid, folder)


def test_the_lock_of_a_job_that_stores_in_a_bucket_is_one_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"s3://bucket-{tmp_path.name}-{os.getpid()}/runs/default/a"
    with JobLock(folder):
        monkeypatch.chdir(tmp_path)
        assert lock.held(folder)


def test_a_machine_without_a_common_temporary_folder_has_the_lock_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOLDER", str(tmp_path / "absent"))
    with JobLock(str(tmp_path / "a")) as held:
        assert os.path.dirname(held.path) == str(tmp_path) and lock.held(str(tmp_path / "a"))


def test_a_full_disk_keeps_no_job_from_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has set TMPDIR for it needs no room beside."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        held = JobLock(str(tmp_path / "a"))
    with held, pytest.raises(LaunchError, match="still hold"):
        JobLock(str(tmp_path / "a"), wait_s=0)


def test_what_is_in_the_place_of_a_lock_is_named(tmp_path: Path) -> None:
    path = Path(lock.lock_path(str(tmp_path / "a")))
    path.symlink_to(tmp_path / "thesis.txt")
    try:
        with pytest.raises(LaunchError, match=f"lock {path} cannot be made"):
            JobLock(str(tmp_path / "a"))
    finally:
        path.unlink()
    assert not (tmp_path / "thesis.txt").exists()


def test_a_process_that_a_signal_has_stopped_is_known() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not lock.is_halted(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert lock.is_halted(process.pid) and lock.started(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not lock.is_halted(process.pid)


def test_the_private_folder_goes_with_its_last_holder(tmp_path: Path) -> None:
    space = scratch.Scratch()
    Path(space.pod_folder("0123456789"), "file").write_text("x")
    inherited = os.dup(space.descriptor)
    assert scratch.sweep() == []
    os.close(space.descriptor)  # the launcher was killed
    assert scratch.sweep() == []
    assert scratch.remove_if_last(space.path, inherited)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_processes_were_all_killed_is_swept(tmp_path: Path) -> None:
    space = scratch.Scratch()
    os.close(space.descriptor)
    (tmp_path / "trainjob-run-newborn").mkdir()
    (tmp_path / "trainjob-other").mkdir()
    assert scratch.sweep() == [space.path]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trainjob-other", "trainjob-run-newborn"]


@pytest.mark.parametrize("look", range(6))
@pytest.mark.parametrize("locked", [True, False])
def test_a_folder_that_goes_while_it_is_looked_at_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int, locked: bool
) -> None:
    """Seen between two launchers: the end of one's job ended the other."""
    folder = tmp_path / "trainjob-run-others"
    folder.mkdir()
    if locked:
        (folder / "lock").touch()
    os.utime(folder, (1, 1))
    looks = iter(range(99))

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if str(path).startswith(str(folder)) and next(looks) == look:
                subprocess.run(["rm", "-r", str(folder)], check=True)
            return real(path, *rest, **more)

        return call

    for name in ("open", "stat", "lstat"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    scratch.sweep()
    monkeypatch.undo()
    assert not folder.exists()
