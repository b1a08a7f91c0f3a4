"""What was brought for an attempt goes with it, and nobody waits for that."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.agent.restoring import restore
from trainjob.agent.restoring.restore import Restore


def test_a_restart_does_not_wait_until_what_was_brought_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, may_go, remove = tmp_path / "brought", threading.Event(), shutil.rmtree
    (folder / "many").mkdir(parents=True)

    def slowly(path: str, ignore_errors: bool) -> None:
        assert may_go.wait(HANG_S), "whoever closes waits for it"
        remove(path, ignore_errors)

    monkeypatch.setattr(restore.shutil, "rmtree", slowly)
    unused: Any = None

    async def scene() -> None:
        Restore(unused, None, str(folder), unused, unused).close()
        may_go.set()

    asyncio.run(scene())  # its end waits for the threads of its loop
    assert not folder.exists()
