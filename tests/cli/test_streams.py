"""What is written to streams that take nothing for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob.screen import streams

WRITES = """
import resource, signal, sys
from trainjob.screen import streams
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
full = open(sys.argv[1], "a")
streams.write(full, "first")
resource.setrlimit(resource.RLIMIT_FSIZE, (6, resource.RLIM_INFINITY))
streams.write(full, "second")
streams.write(full, "third")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
streams.write(full, "fourth")
streams.write(full, "fifth")
"""


def test_lines_for_which_a_disk_has_no_room_are_left_out_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    subprocess.run([sys.executable, "-c", WRITES, str(log)], check=True)
    assert log.read_text().splitlines() == [
        "first",
        "tj  | lines missing here: 2 (the disk of this output was full)",
        "fourth",
        "fifth",
    ]


def test_a_full_disk_does_not_change_how_a_command_ends() -> None:
    """Python flushes at the end what its streams hold."""
    code = "import sys; from trainjob.screen import streams; streams.write(sys.stdout, 'a line')"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=full).returncode == 0


SAYS = """
import os, sys
from trainjob.screen import streams
data = open(sys.argv[1], "w")
assert data.fileno() == 2
streams.have_all()
streams.say("the job's name is digits")
"""


def test_what_a_program_without_standard_error_has_opened_is_not_written_to(tmp_path: Path) -> None:
    """Its first file has that number."""
    data = tmp_path / "results.csv"
    subprocess.run([sys.executable, "-c", SAYS, str(data)], check=True, preexec_fn=lambda: os.close(2))
    assert data.read_text() == ""


def test_another_fault_of_a_stream_is_raised(tmp_path: Path) -> None:
    stream = (tmp_path / "train.log").open("w")
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        streams.write(stream, "a line")
