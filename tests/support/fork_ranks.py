"""Ranks that share one import of torch: forked from a process that has it, each then runs the script as its `__main__`.

`run_forked(environs, script, cwd)` from tests; `python -m support.fork_ranks` is the process that forks. For tests of
what torch computes; tests of a rank's boot use `support.ranks`.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.ranks import TIMEOUT_S, Ended, environment


def run_forked(environs: Sequence[Mapping[str, str]], script: Path, cwd: Path) -> Ended:
    """All ranks run `script` to the end; the exit code is 0 if that of each is. Output is that of all, in no order."""
    done = subprocess.run(
        [sys.executable, "-m", "support.fork_ranks", json.dumps([dict(each) for each in environs]), str(script)],
        env=environment({}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _main(environs: list[dict[str, str]], script: str) -> int:
    import torch.distributed

    import trainjob.torch.model  # noqa: F401

    torch.set_num_threads(1)
    children = []
    for environ in environs:
        child = os.fork()
        if child == 0:
            code = 1
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
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1]), sys.argv[2]))
