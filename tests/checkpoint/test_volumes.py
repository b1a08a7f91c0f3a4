"""A folder that went while a job stores in it: made anew where it was removed, not where its volume was unmounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainjob.checkpoint.errors import UNREADABLE, StoreError
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.local.registry import presence


def mount(folder: Path) -> None:
    said = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if said.returncode:
        pytest.skip("this user may not mount a volume")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "volume"
    folder.mkdir()
    mount(folder)
    yield folder
    unmount(folder)


def test_the_disk_below_an_unmounted_volume_gets_no_folder(volume: Path) -> None:
    job = volume / "default" / "digits"
    assert PathStore(str(job)).create("runs/1.json", b"{}")
    unmount(volume)
    for key in ("runs/1.json", "runs/2.json", "checkpoints/1-1-1/model.pt"):
        with pytest.raises(StoreError, match="its volume with it: it was unmounted") as refused:
            PathStore(str(job)).create(key, b"{}")
        assert refused.value.kind == UNREADABLE, "it is tried again"
    assert list(volume.iterdir()) == []
    assert "its volume was unmounted" in presence.gone(str(job)) and "anew" not in presence.gone(str(job))
    assert "mount its volume before you run" in presence.at_the_end(str(job), 0.0)
    mount(volume)
    job.mkdir(parents=True)
    assert PathStore(str(job)).create("runs/2.json", b"{}"), "the volume is back, whatever its device is called now"


def test_a_folder_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    job = tmp_path / "default" / "digits"
    assert PathStore(str(job)).create("runs/1.json", b"{}")
    shutil.rmtree(tmp_path / "default")
    assert "makes the folder anew" in presence.gone(str(job))
    assert PathStore(str(job)).create("checkpoints/1-1-1/model.pt", b"{}")
