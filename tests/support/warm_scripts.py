"""Scripts of a launcher that share one import of torch: each runs as `__main__` in a fork of a process that has it.

`with WarmScripts("torch") as scripts: scripts.run(...)` from tests; `python -m support.warm_scripts MODULES` is the
process that forks. What they start (agents, ranks) are processes as ever.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.patience import HANG_S
from support.ranks import Ended, environment
from trainjob.session import large_imports

_PR_SET_PDEATHSIG = 1


class WarmScripts:
    """The process that has these modules, until the context ends."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.warm_scripts", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment({}),
        )

    def __enter__(self) -> WarmScripts:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, script: Path, arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> Ended:
        """To its end. Its output lies in `folder` meanwhile."""
        out, err = folder / "out", folder / "err"
        order = {"argv": [str(script), *arguments], "environ": dict(environ), "out": str(out), "err": str(err)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], HANG_S)[0]:
            raise TimeoutError(f"{script.name} runs for {HANG_S:g} s\n{out.read_text()}{err.read_text()}")
        code = int(self._process.stdout.readline() or b"-1")
        return Ended(code, out.read_text(), err.read_text())


def _serve(modules: Sequence[str]) -> None:
    large_imports.quiet()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(**order)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(argv: list[str], environ: dict[str, str], out: str, err: str) -> None:
    """What a new interpreter finds; the end is an interpreter's too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, name in enumerate((os.devnull, out, err)):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    mine = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    theirs = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [os.path.dirname(argv[0]), *theirs, *(entry for entry in sys.path[1:] if entry not in mine)]
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    sys.argv[:] = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1:])
