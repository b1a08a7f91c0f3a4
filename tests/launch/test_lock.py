"""One job of a name at a time; the lock outlives a killed launcher in the processes that inherited it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch.errors import LaunchError
from trainjob.launch.local import lock, scratch
from trainjob.launch.local.lock import JobLock


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield


def test_a_second_launcher_is_told_who_has_it(tmp_path: Path) -> None:
    with JobLock("/data/default/a"):
        with pytest.raises(LaunchError, match=rf"running already \(launcher pid {os.getpid()}\)"):
            JobLock("/data/default/a")
        with JobLock("/data/default/b"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_launcher_lives_in_its_children_and_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from trainjob.launch.local.lock import JobLock\n"
        "held = JobLock('/data/default/a')\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[held.descriptor])\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    assert launcher.stdout is not None
    orphan = int(launcher.stdout.readline())
    try:
        launcher.kill()  # not reaped yet: a zombie is no launcher that one could wait for
        os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LaunchError, match="earlier launcher still hold"):
            JobLock("/data/default/a", wait_s=0.2)
        told: list[str] = []

        def end_it(text: str) -> None:
            told.append(text)
            os.kill(orphan, signal.SIGKILL)

        with JobLock("/data/default/a", wait_s=120, on_wait=end_it):
            assert len(told) == 1
    finally:
        launcher.communicate()
        if not told:
            os.kill(orphan, signal.SIGKILL)


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    first = JobLock("/data/default/a")
    waiting = os.open(first.path, os.O_RDWR)
    first.release()
    try:
        with JobLock("/data/default/a") as second:
            assert not os.path.samestat(os.fstat(waiting), os.stat(second.path))
    finally:
        os.close(waiting)
    assert not os.path.exists(lock.lock_path("/data/default/a"))


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


def _environment() -> dict[str, str]:
    roots = [str(Path(lock.__file__).parents[3]), str(Path(sys.modules["trainjob_api"].__file__ or "").parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
