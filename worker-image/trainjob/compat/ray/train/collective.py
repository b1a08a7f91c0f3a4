"""`ray.train.collective` by TrainJob's own names."""

from __future__ import annotations

from trainjob.compat.absent import names

_HOMES = dict.fromkeys(("barrier", "broadcast_from_rank_zero"), "trainjob.collective")
_HINTS = dict.fromkeys(
    ("allreduce", "allgather", "broadcast"),
    "use torch.distributed for tensors; ray.train.collective has barrier and broadcast_from_rank_zero",
)
__getattr__ = names("ray.train.collective", _HOMES, _HINTS)
