"""Which process of this machine is which rank of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trainjob.launch.local import ranks
from trainjob.launch.local.scratch import Scratch

ORPHAN = """
import os, signal, sys
file = open(sys.argv[1], "w")
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
null = os.open(os.devnull, os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
signal.pause()
"""


def orphan(folder: Path, rank: int) -> int:
    """A process that holds a rank's file and has lost its parent; its pid."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", ORPHAN, str(folder / f"stack-{rank}")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_rank_whose_parent_was_killed_is_found_in_the_folder_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = Scratch()  # this process is the launcher
    folder = Path(scratch.pod_folder("0a1b2c3d-4e5f")) / "run"
    pids = [orphan(folder, 3), orphan(tmp_path / "another", 4)]
    try:
        assert ranks.below(os.getpid()) == [ranks.RankProcess(3, pids[0], str(folder))]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        scratch.remove()
