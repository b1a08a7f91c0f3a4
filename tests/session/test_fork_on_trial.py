"""A library that waits for ever in a fork, for a thread that the fork does not have, say, holds up no start."""

from __future__ import annotations

import subprocess
import sys

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
