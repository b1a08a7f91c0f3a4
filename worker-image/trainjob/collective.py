"""`trainjob.collective`: the calls that all ranks make together, under the name that Ray Train gives their module."""

from __future__ import annotations

from trainjob.session.calls import barrier, broadcast_from_rank_zero

__all__ = ["barrier", "broadcast_from_rank_zero"]
