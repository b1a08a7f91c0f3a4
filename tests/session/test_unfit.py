"""A library that waits for ever in a fork, for a thread that the fork does not have, say, holds up no start, and what
makes a process unfit to be forked ends with it. So does what it has imported while another version was installed.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from support.patience import HANG_S

HANGS = """
import os, time
from trainjob.session.warm import fitness
fitness._TRIAL_S = 0.2
before = fitness.Before()
os.register_at_fork(after_in_child=lambda: time.sleep(3600))
print(fitness.unfit(before))
print(fitness._children())
"""


def test_a_fork_on_trial_that_hangs_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=HANG_S / 4, check=False
    )
    assert done.stdout.splitlines() == ["a fork on trial did not come to an end in 0.2 s", "[]"], done.stderr


STARTS = """
import sys
from trainjob.session.warm import birth, fitness, learned, parent
sys.path.append(sys.argv[1])
try:
    parent.grow(parent.Wishes(("starts",), "", False, "", ()), frozenset(), birth.Birth())
except learned.Unfit as error:
    print(error)
print(fitness._children())
"""


def test_what_was_begun_in_a_process_that_is_of_no_use_ends(tmp_path: Path) -> None:
    """One that is kept begins anew in its place, and would take it for what was imported then."""
    (tmp_path / "starts.py").write_text(
        "import subprocess\nkept = subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path)], capture_output=True, text=True, timeout=HANG_S / 4, check=False
    )
    said, children = done.stdout.splitlines()
    assert said.startswith("what was imported started process") and children == "[]", done.stderr


MIXES = """
import sys
from trainjob.session.warm import birth, parent
sys.path.append(sys.argv[1])
grown = parent.grow(parent.Wishes(("mixed",), "", False, "", ()), frozenset(), birth.Birth())
print(grown.ahead.installed.changed())
"""


def test_what_is_installed_while_it_is_imported_is_not_there_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text("import os\nos.mkdir(os.path.dirname(__file__) + '/mixed-2.0.dist-info')\n")
    done = subprocess.run(
        [sys.executable, "-c", MIXES, str(tmp_path)], capture_output=True, text=True, timeout=HANG_S / 4, check=False
    )
    assert "mixed-2.0.dist-info may decide what is imported, and has changed" in done.stdout, done.stderr


SEEDS = """
import random, numpy, numpy.random
import torch
from trainjob.session.warm import seeds
before = seeds.Seeds()
assert sum(random.random() for _ in range(5000)) and numpy.random.rand() and torch.rand(1) is not None
print(before.given())
torch.manual_seed(5)
print(before.given(), seeds.Seeds().given())
random.seed(5)
print(before.given())
"""


def test_who_draws_numbers_seeds_none() -> None:
    done = subprocess.run([sys.executable, "-c", SEEDS], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.splitlines() == ["None", "torch None", "Python"], done.stderr


NO_ROOM = """
import os, resource, socket
from trainjob.session.warm import gate, parent
from trainjob_api.warm_messages import FROM_GATE, TO_GATE, Go, packet, parse
agents, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
resource.setrlimit(resource.RLIMIT_NOFILE, (theirs.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(parent._is_gate(own))
print(parse(FROM_GATE, agents.recv(1000)).why)
if os.fork() == 0:
    gate.wait(theirs, os.getppid())
ours.recv(1000)
socket.send_fds(ours, [packet(TO_GATE, Go())], [0, 1])
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_fork_without_room_for_a_file_is_no_rank_that_has_ended_well() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM], capture_output=True, text=True, timeout=HANG_S / 4, check=False
    )
    why = f"the warm parent cannot be forked: [Errno {errno.EMFILE}] {os.strerror(errno.EMFILE)}"
    assert done.stdout.splitlines() == ["False", why, "1"], done.stderr
