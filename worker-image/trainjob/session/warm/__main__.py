"""`python [flags] -m trainjob.session.warm FD`: the warm parent, and by its forks the ranks.

What follows `FD` only keeps room for the command line that a rank shows (`title`).
"""

from __future__ import annotations

import os
import sys

from trainjob.session import rank

# A plain rank has the modules of its boot by now: only what comes after can be another than it would import.
_BOOTED = frozenset(sys.modules)


def _leave_folder() -> bool:
    """Take away the working folder that `-m` put in front: what a user keeps there must not become ours. True: it was
    there.
    """
    safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if safe or not sys.path or os.path.abspath(sys.path[0]) != os.getcwd():
        return False
    del sys.path[0]
    return True


def main() -> None:
    """Returns at the end of a rank's script; the parent itself never returns."""
    own, folder = list(sys.path), _leave_folder()
    try:
        from trainjob.session.warm import parent
    except ImportError:  # the library lies in the working folder alone
        sys.path[:] = own
        from trainjob.session.warm import parent
    command = parent.serve(int(sys.argv[1]), _BOOTED, os.getcwd() if folder else None)
    rank.run(command)


if __name__ == "__main__":
    main()
