"""`trainjob.collective`: the calls that all ranks make together, under the name that Ray Train gives their module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.session import unknown_name
from trainjob.session.calls import barrier, broadcast_from_rank_zero

__all__ = ["barrier", "broadcast_from_rank_zero"]

if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has every name
    __getattr__ = unknown_name.getter(__name__, __all__)
