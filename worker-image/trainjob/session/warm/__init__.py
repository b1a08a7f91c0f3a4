"""The warm parent: a process that has imported what ranks import, and of which each rank is a fork.

Started by the agent, under the interpreter, flags, environment and working folder of the job, as a rank that is told to
wait (`python [flags] -m trainjob.session.rank --warm FD`; what follows only keeps room for the command line that a rank
shows, `title`). `parent` imports, checks itself (`fitness`) and forks; a fork waits at its `gate` and then becomes what
`python script.py` would be (`becoming`), by the same boot as any rank (`session.rank`). One that is kept for the next
job of this machine (`kept`) belongs to no agent: for each it forks one that is the agent's. One thread, no CUDA,
nothing of the user's own code.
"""

from __future__ import annotations

import os
import sys
from typing import Sequence


def command(fd: int) -> Sequence[str]:
    """What a fork is to run: it returns in a fork that has its order. The parent itself ends in here."""
    # A plain rank has the modules of its boot by now: only what comes after can be another than it would import.
    booted = frozenset(sys.modules)
    own, folder = list(sys.path), _leave_folder()
    try:
        from trainjob.session.warm import parent
    except ImportError:  # the library lies in the working folder alone
        sys.path[:] = own
        from trainjob.session.warm import parent
    return parent.serve(fd, booted, os.getcwd() if folder else None)


def keep(fds: str) -> Sequence[str]:
    """The same of a parent that is kept for the next job: `LISTENER:ORDER`, a socket and the file of its `Keep`."""
    booted = frozenset(sys.modules)
    own, folder = list(sys.path), _leave_folder()
    try:
        from trainjob.session.warm import kept
    except ImportError:
        sys.path[:] = own
        from trainjob.session.warm import kept
    listener, _, order = fds.partition(":")
    return kept.serve(int(listener), int(order), booted, os.getcwd() if folder else None)


def _leave_folder() -> bool:
    """Take away the working folder that `-m` put in front: what a user keeps there must not become ours. True: it was
    there.
    """
    safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if safe or not sys.path or os.path.abspath(sys.path[0]) != os.getcwd():
        return False
    del sys.path[0]
    return True
