"""Trainers of frameworks other than PyTorch: a DataParallelTrainer whose ranks know of each other when the function
begins.

User code calls them. What is set up is in `handover.frameworks`.
"""

from __future__ import annotations

from trainjob.launch.handover import payload
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.launch.trainer import DataParallelTrainer
from trainjob.session.arguments import told_of


@told_of(WAYS_OUT)
class JaxTrainer(DataParallelTrainer):
    """JAX training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer that has called `trainjob.jax.initialize()` in each rank: `jax.devices()` are those of all
    ranks. Where a machine has several ranks, each has the accelerator of its local rank. Arguments and errors are a
    DataParallelTrainer's.
    """

    _FRAMEWORK = payload.JAX


@told_of(WAYS_OUT)
class TensorflowTrainer(DataParallelTrainer):
    """TensorFlow training of a function on several ranks, with recovery: on this machine, or with `backend` on a
    cluster.

    A DataParallelTrainer that has called `trainjob.tensorflow.set_tf_config()` in each rank: a
    `MultiWorkerMirroredStrategy` that the function makes finds all ranks of this attempt in TF_CONFIG. Arguments and
    errors are a DataParallelTrainer's.
    """

    _FRAMEWORK = payload.TENSORFLOW


@told_of(WAYS_OUT)
class XGBoostTrainer(DataParallelTrainer):
    """XGBoost training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer whose function runs inside `trainjob.xgboost.communicator()`: `xgboost.train` in all ranks
    makes one booster of their rows. `load_booster()`, `rounds_left()` and `ReportCallback` of `trainjob.xgboost` resume
    it. Arguments and errors are a DataParallelTrainer's.
    """

    _FRAMEWORK = payload.XGBOOST


@told_of(WAYS_OUT)
class LightGBMTrainer(DataParallelTrainer):
    """LightGBM training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer: LightGBM wants its peers as parameters of `lightgbm.train`, which
    `trainjob.lightgbm.network_params()` gives in the function. `load_booster()`, `rounds_left()` and `ReportCallback`
    of that module resume it. Arguments and errors are a DataParallelTrainer's.
    """
