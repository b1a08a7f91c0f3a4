"""`from trainjob.compat import ray`: what training loops use of Ray, answered by TrainJob."""

from __future__ import annotations

import warnings
from typing import Any

from trainjob.compat.absent import names

_HOMES = dict.fromkeys(("init", "is_initialized", "shutdown"), __name__)
_HOMES["train"] = f"{__name__}.train"
_DATA = "read data with a torch DataLoader and ray.train.torch.prepare_data_loader"
_TASKS = (
    "TrainJob runs training functions on ranks, not tasks and actors; use multiprocessing or concurrent.futures "
    "inside a rank"
)
_HINTS = {
    "data": _DATA,
    "tune": "start one TrainJob per trial (`tj run`, TorchTrainer.fit()); ray.train.report gives the metrics",
    "air": "its names moved to ray.train, which is here",
    "serve": "the nearest thing is to load ray.train.Checkpoint(path) in a server of your own",
    "remote": _TASKS,
    "get": _TASKS,
    "put": _TASKS,
    "wait": _TASKS,
    "kill": _TASKS,
    "get_actor": _TASKS,
    "ObjectRef": _TASKS,
    "util": "the nearest thing is ray.train.collective for barriers and broadcasts",
    "cluster_resources": "there is no cluster of TrainJob's own; ask Kubernetes (`kubectl get nodes`)",
    "available_resources": "there is no cluster of TrainJob's own; ask Kubernetes (`kubectl get nodes`)",
    "nodes": "there is no cluster of TrainJob's own; ask Kubernetes (`kubectl get nodes`)",
    "get_runtime_context": "the nearest thing is ray.train.get_context()",
    "get_gpu_ids": "the nearest thing is ray.train.torch.get_devices()",
}
__getattr__ = names("ray", _HOMES, _HINTS)

_initialized = False


def init(*args: Any, **kwargs: Any) -> None:
    """Accepted: there is nothing to connect to. Says so once."""
    global _initialized
    if not _initialized:
        warnings.warn(
            "ray.init() does nothing here: TrainJob has no cluster of its own to connect to; its arguments are not "
            "used.",
            stacklevel=2,
        )
    _initialized = True


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not."""
    return _initialized


def shutdown(*args: Any, **kwargs: Any) -> None:
    """Accepted: there is nothing to shut down."""
    global _initialized
    _initialized = False
