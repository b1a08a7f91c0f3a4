"""A job's display on a terminal that goes away, or that is somebody else's by the time the job ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

from support.patience import HANG_S

SHOWS = """
import sys
from trainjob.screen.display import PlainDisplay
from trainjob.screen.live import LiveDisplay
display = LiveDisplay() if sys.argv[1] == "live" else PlainDisplay(sys.stdout, sys.stderr)
display.note("begins")
display.line("r00 | seen")
sys.stdin.readline()
display.line("r00 | unseen")
display.note("unseen")
display.close()
"""

JOB = """
import os, signal
from trainjob.screen.live import without_echo_of_control_keys
with without_echo_of_control_keys():
    os.kill(os.getpid(), signal.SIGSTOP)  # Ctrl-Z, then `bg`
"""
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.waitpid(job, os.WUNTRACED)
os.tcsetpgrp(0, os.getpgrp())
os.kill(job, signal.SIGCONT)
_, status = os.waitpid(job, os.WUNTRACED)
if os.WIFSTOPPED(status):
    os.kill(job, signal.SIGKILL)
    sys.exit("the job is stopped once more")
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_terminal_that_is_closed_ends_no_job(kind: str) -> None:
    """An ssh connection that is gone, below a job in the background."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SHOWS, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=_environment())
    os.close(theirs)
    seen = b""
    while b"r00 | seen" not in seen:
        seen += os.read(ours, 65536)
    os.close(ours)
    process.communicate(b"closed\n", timeout=HANG_S)
    assert process.returncode == 0


MUCH = """
import os, sys
from trainjob.screen.display import PlainDisplay
from trainjob.screen.live import LiveDisplay
os.set_blocking(1, False)  # by whoever shares it
display = LiveDisplay() if sys.argv[1] == "live" else PlainDisplay(sys.stdout, sys.stderr)
for number in range(200):
    display.line(f"r00 | {number:04}" + " " * 100 + "is shown")
display.close()
"""


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_terminal_that_does_not_block_is_waited_for(kind: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", MUCH, kind]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=_environment())
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: it has ended
        while more := os.read(ours, 65536):
            seen += more
    os.close(ours)
    assert process.wait(HANG_S) == 0
    assert [int(found) for found in re.findall(rb"r00 \| (\d{4})", seen)] == list(range(200))


def test_a_job_that_ends_in_the_background_is_not_stopped_over_its_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SHELL, JOB]
    shell = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, start_new_session=True)
    os.close(theirs)
    _, said = shell.communicate(timeout=HANG_S)
    os.close(ours)
    assert (shell.returncode, said) == (0, b"")


def _environment() -> dict[str, str]:
    return {**os.environ, "TERM": "xterm"}
