"""Where a rank stands, readable from outside: faulthandler answers the agent's signal with all threads' stacks.

Called at a rank's boot and, where a launcher such as torchrun started the rank, by the connection's opening.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from trainjob_api import contract

_registered = False


def make_readable() -> None:
    """Have STACK_SIGNAL write the stacks into this rank's file in ENV_STACK_FOLDER, once per process; a crash leaves
    its own in the rank's log. Where there is no room for that file the rank trains without, and says so.
    """
    global _registered
    if _registered:
        return
    _registered = True
    folder, rank = os.environ.get(contract.ENV_STACK_FOLDER), os.environ.get(contract.ENV_RANK)
    if folder and rank:
        _register(os.path.join(folder, contract.STACK_FILE.format(rank=rank)))
    if not faulthandler.is_enabled():
        faulthandler.enable()


def _register(path: str) -> None:
    try:
        # Kept open for the life of the process: faulthandler writes to the bare descriptor from inside a signal
        # handler.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"trainjob: the stacks of this rank cannot be shown: {error}", file=sys.stderr)
    else:
        faulthandler.register(getattr(signal, contract.STACK_SIGNAL_NAME), file=descriptor, all_threads=True)
