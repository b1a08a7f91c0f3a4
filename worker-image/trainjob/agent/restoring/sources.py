"""Where the files of one checkpoint are: the own staging, peers' agents, storage. Told by `restore`, read by
`gathering` and `from_peers`.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.restoring.fetching import Peer
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.staging.stamp import Stamp

Sum = Tuple[str, str]
"""(checksum, algorithm)."""


class Sources(NamedTuple):
    """Where the files of one checkpoint are."""

    note: ReleaseNote
    staged: str
    """Folder of what lies in the own staging."""
    own: Mapping[str, Stamp]
    """Paths there, and how the files looked when they were kept."""
    holders: Mapping[str, Peer]
    """Paths that peers' agents hold in their staging."""
    committed: Optional[Mapping[str, Any]] = None
    """How the storage child knows it: {checkpoint} or {uri}; None: it has no manifest."""
    sums: Mapping[str, Sum] = {}
    """Of committed ones, by path."""
    is_stored: Callable[[], bool] = lambda: False
    """Whether storage is known to have all of it by now, so that what lies in the own staging is no only copy."""
    may_go: Callable[[], bool] = lambda: False
    """Whether a newer one was released, so that what lies in the own staging leaves it any moment."""
