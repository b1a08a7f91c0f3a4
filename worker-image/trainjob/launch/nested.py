"""A fit() in a rank, which would start one more job in each: refused where it is there by mistake.

A rank imports the module of its training function, and whatever that imports. One that calls fit() as it is imported
would start a job whose ranks import it again, and so on without an end. A script whose ranks `tj run` has started would
start as many jobs as it has ranks. Called by `fitting` before anything is started; reads the stack, touches nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import FrameType

from trainjob.launch.errors import LaunchError
from trainjob_api import contract

in_function = False
"""Whether this process is a rank that runs a trainer's function. One that calls fit() there means it."""


def refuse(environ: Mapping[str, str]) -> None:
    """Raises LaunchError in a rank that imports a module whose own lines call this, and in each rank of a script."""
    if not environ.get(contract.ENV_AGENT_SOCKET):
        return
    ranks = int(environ.get(contract.ENV_WORLD_SIZE) or 1)
    if ranks > 1 and not in_function:
        script = os.path.basename(sys.argv[0])
        raise LaunchError(
            f"{script} calls fit() in each of the {ranks} ranks of a job, and each {contract.JOBS_OF_RANKS}: run "
            f"it with `python {script}`, since fit() starts the ranks; or call the training function itself"
        )
    found = _imported(sys._getframe(1))
    if found is not None:
        path, line = found.f_code.co_filename, found.f_lineno
        raise LaunchError(
            f"{path}, line {line} calls fit() as a rank imports it: each rank {contract.JOBS_OF_RANKS}, whose "
            'ranks import it again. Put that line under `if __name__ == "__main__":`; if the rank meant to import '
            "another module of that name, give this file another one"
        )


def _imported(frame: FrameType | None) -> FrameType | None:
    """The module that is being imported as this frame runs; None: its callers are functions and the main script."""
    module: FrameType | None = None
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            module = frame
        elif module is not None:
            return module if frame.f_code.co_filename.startswith("<frozen importlib") else None
        frame = frame.f_back
    return None
