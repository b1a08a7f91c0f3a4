"""Real rank processes for session and torch tests: each runs a script through the rank's own boot, under a
FakeAgent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.fake_agent import FakeAgent
from support.patience import HANG_S

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a rank ended and what it said."""

    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A small environment: this checkout importable, one thread for torch, nothing of the calling shell that could
    matter.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "worker-image", "tests"))
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **extra}


def boot(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    """`python -m trainjob.session.rank -- command` as a child process."""
    line = [sys.executable, "-m", "trainjob.session.rank", "--", *command]
    return subprocess.Popen(
        line,
        env=environment(env),
        cwd=cwd,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(processes: Sequence[subprocess.Popen[str]], timeout_s: float = HANG_S) -> list[Ended]:
    """Wait for all; whatever is left at the time-out is killed and fails the test."""
    try:
        ended = []
        for process in processes:
            out, err = process.communicate(timeout=timeout_s)
            ended.append(Ended(process.returncode, out, err))
        return ended
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def run_ranks(
    agent: FakeAgent, command: Sequence[str], cwd: Path, extra: Mapping[str, str] | None = None
) -> list[Ended]:
    """All ranks of `agent` run `command` to their ends."""
    return finish([boot(command, {**agent.environ(rank), **(extra or {})}, cwd) for rank in range(agent.world_size)])
