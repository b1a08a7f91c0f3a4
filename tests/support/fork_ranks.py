"""Ranks that share one import of torch: forked from a process that has it, each then runs the script as its `__main__`.

`run_forked(environs, script, cwd)` from tests; `python -m support.fork_ranks` is the process that forks. For tests of
what torch computes; tests of a rank's boot use `support.ranks`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.patience import HANG_S
from support.ranks import Ended, environment
from trainjob.session import large_imports

_PR_SET_PDEATHSIG = 1
"""A rank goes with the process that forked it, which a time-out kills."""


def run_forked(environs: Sequence[Mapping[str, str]], script: Path, cwd: Path) -> Ended:
    """All ranks run `script` to the end; the exit code is 0 if that of each is. Output is that of all, in no order."""
    return run_stages([environs], script, cwd)


def run_stages(
    stages: Sequence[Sequence[Mapping[str, str]]], script: Path, cwd: Path, preload: Sequence[str] = ()
) -> Ended:
    """The same for several jobs after each other, of any number of ranks, with one import of torch, and of
    `preload`, for all; ends at the first that fails.
    """
    jobs = json.dumps([[dict(each) for each in environs] for environs in stages])
    done = subprocess.run(
        [sys.executable, "-m", "support.fork_ranks", jobs, str(script), *preload],
        env=environment({}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=HANG_S * len(stages),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _main(stages: list[list[dict[str, str]]], script: str, preload: Sequence[str]) -> int:
    large_imports.quiet()
    # The first optimizer and DDP import torch._dynamo, 1.4 s of processor time in each rank that has to do it by
    # itself.
    import torch._dynamo
    import torch.distributed

    import trainjob.torch.model  # noqa: F401

    for module in preload:
        importlib.import_module(module)
    torch.set_num_threads(1)
    return int(any(_stage(environs, script) for environs in stages))


def _stage(environs: list[dict[str, str]], script: str) -> bool:
    children = []
    for environ in environs:
        child = os.fork()
        if child == 0:
            code = 1
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                os.environ.update(environ)
                runpy.run_path(script, run_name="__main__")
                code = 0
            except BaseException:  # this is the end of a process
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return any(ended)


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]))
