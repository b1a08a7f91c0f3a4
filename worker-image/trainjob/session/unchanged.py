"""Scripts that ask JAX or TensorFlow for all ranks by themselves, as they do under other launchers: they are given the
job's, and need no name of ours. Lightning, which counts its ranks by `devices` and `num_nodes`, is told on.

Called by `rank` at boot; imports neither library, and what makes the ranks known only when a script asks. Every rank
asks: both libraries want that.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from trainjob.session.on_import import on_import
from trainjob_api import contract

_JAX, _JAX_OF_THE_JOB = "jax.distributed", "trainjob.integrations.jax"
_TENSORFLOW = "tensorflow.python.distribute.collective_all_reduce_strategy"
_TENSORFLOW_OF_THE_JOB = "trainjob.integrations.tensorflow"
"""The session knows the integrations by name alone: they stand on it."""
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_STRATEGY = "CollectiveAllReduceStrategy"
"""What tf.distribute calls MultiWorkerMirroredStrategy."""
_TF_CONFIG = "TF_CONFIG"
_PLACE = {
    "coordinator_address": contract.ENV_JAX_COORDINATOR_ADDRESS,
    "num_processes": contract.ENV_JAX_NUM_PROCESSES,
    "process_id": contract.ENV_JAX_PROCESS_ID,
}
"""What JAX wants to hear -> where a script may read it."""


def find_all_ranks() -> None:
    """In this process, once the libraries are imported."""
    on_import(_JAX, _jax)
    on_import(_TENSORFLOW, _tensorflow)
    for name in _LIGHTNING:
        on_import(name, _lightning)


def _jax(module: ModuleType) -> None:
    plain: Any = getattr(module, "initialize", None)
    if plain is None:
        return
    arguments = inspect.signature(plain)

    @functools.wraps(plain)
    def initialize(*args: Any, **kwargs: Any) -> None:
        given = arguments.bind(*args, **kwargs).arguments
        place = {name: given.pop(name, None) for name in _PLACE}
        if all(value is None or str(value) == os.environ.get(_PLACE[name]) for name, value in place.items()):
            import_module(_JAX_OF_THE_JOB).join(**given)
        else:
            plain(*args, **kwargs)

    module.initialize = initialize  # type: ignore[attr-defined]


def _tensorflow(module: ModuleType) -> None:
    strategy: Any = getattr(module, _STRATEGY, None)
    if strategy is None:
        return
    plain = strategy.__init__

    @functools.wraps(plain)
    def init(self: Any, cluster_resolver: Any = None, *args: Any, **kwargs: Any) -> None:
        if cluster_resolver is None and _TF_CONFIG not in os.environ:
            import_module(_TENSORFLOW_OF_THE_JOB).set_tf_config()
        plain(self, cluster_resolver, *args, **kwargs)

    strategy.__init__ = init


def _lightning(module: ModuleType) -> None:
    trainer: Any = getattr(module, "Trainer", None)
    if trainer is None:
        return
    plain = trainer.fit

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        ranks, counted = int(os.environ.get(contract.ENV_WORLD_SIZE, "1")), self.world_size
        if ranks > 1 and counted != ranks and os.environ.get(contract.ENV_RANK) == "1":
            each = "so each trains a model of its own on all the data" if counted == 1 else "which never meet"
            warnings.warn(
                f"The ranks train apart: the job has {ranks} ranks, and Lightning counts {counted}, {each}. "
                "Use pl.Trainer(strategy=trainjob.lightning.TrainJobDDPStrategy(), "
                "callbacks=[trainjob.lightning.ReportCallback()], ...), whatever `devices` says.",
                stacklevel=2,
            )
        return plain(self, *args, **kwargs)

    trainer.fit = fit
