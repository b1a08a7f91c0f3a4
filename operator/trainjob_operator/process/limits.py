"""What this process may use of its machine. Called once, at its start."""

from __future__ import annotations

import resource


def raise_open_files() -> None:
    """To the hard limit: each agent of each job keeps a connection open, and many container runtimes begin at 1024. The
    operator starts no process that this would be passed on to.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
