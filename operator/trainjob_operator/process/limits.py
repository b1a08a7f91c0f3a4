"""What this process may use of its machine. Called once, at its start."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)


def raise_open_files() -> None:
    """To the hard limit: each agent of each job keeps a connection open, and many container runtimes begin at 1024. The
    operator starts no process that this would be passed on to. Where it is refused, the limit stays as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        # The machine's fs.nr_open was lowered below the hard limit, or a sandbox forbids it.
        most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        _log.warning("this process may open %d files; raising that to %s was refused: %s", soft, most, error)
