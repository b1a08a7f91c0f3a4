"""Trainers of frameworks: a DataParallelTrainer whose ranks know of each other when the function begins, or a
TorchTrainer whose function is the framework's own loop.

User code calls them. What is set up is in `handover.frameworks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainjob.integrations.loops import LightningLoop, TransformersLoop
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover import payload
from trainjob.launch.handover.config import RunConfig, ScalingConfig, TorchConfig
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.launch.trainer import DataParallelTrainer, TorchTrainer
from trainjob.session.arguments import told_of
from trainjob.session.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trainjob.launch.cluster.kubernetes import Kubernetes


@told_of(WAYS_OUT)
class JaxTrainer(DataParallelTrainer):
    """JAX training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer that has called `trainjob.jax.initialize()` in each rank: `jax.devices()` are those of all
    ranks. Where a machine has several ranks, each has the accelerator of its local rank. Arguments and errors are a
    DataParallelTrainer's.

    ```python
    def train(config):
        import jax

        print(jax.process_index(), jax.device_count())  # the devices of all ranks


    trainer = JaxTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="jax"))
    ```
    """

    _FRAMEWORK = payload.JAX


@told_of(WAYS_OUT)
class TensorflowTrainer(DataParallelTrainer):
    """TensorFlow training of a function on several ranks, with recovery: on this machine, or with `backend` on a
    cluster.

    A DataParallelTrainer that has called `trainjob.tensorflow.set_tf_config()` in each rank: a
    `MultiWorkerMirroredStrategy` that the function makes finds all ranks of this attempt in TF_CONFIG. Arguments and
    errors are a DataParallelTrainer's.

    ```python
    def train(config):
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])


    trainer = TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=2))
    ```
    """

    _FRAMEWORK = payload.TENSORFLOW


@told_of(WAYS_OUT)
class XGBoostTrainer(DataParallelTrainer):
    """XGBoost training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer whose function runs inside `trainjob.xgboost.communicator()`: `xgboost.train` in all ranks
    makes one booster of their rows. `load_booster()`, `rounds_left()` and `ReportCallback` of `trainjob.xgboost` resume
    it. Arguments and errors are a DataParallelTrainer's.

    ```python
    def train(config):
        import xgboost
        from trainjob.xgboost import ReportCallback, load_booster, rounds_left

        rows = xgboost.DMatrix(config["x"], config["y"])  # this rank's
        xgboost.train({}, rows, rounds_left(100), xgb_model=load_booster(), callbacks=[ReportCallback()])


    trainer = XGBoostTrainer(train, scaling_config=ScalingConfig(num_workers=2))
    ```
    """

    _FRAMEWORK = payload.XGBOOST


@told_of(WAYS_OUT)
class LightGBMTrainer(DataParallelTrainer):
    """LightGBM training of a function on several ranks, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer: LightGBM wants its peers as parameters of `lightgbm.train`, which
    `trainjob.lightgbm.network_params()` gives in the function. `load_booster()`, `rounds_left()` and `ReportCallback`
    of that module resume it. Arguments and errors are a DataParallelTrainer's.

    ```python
    def train(config):
        import lightgbm
        from trainjob.lightgbm import ReportCallback, load_booster, network_params, rounds_left

        rows, settings = lightgbm.Dataset(config["x"], config["y"]), {"tree_learner": "data", **network_params()}
        lightgbm.train(settings, rows, rounds_left(100), init_model=load_booster(), callbacks=[ReportCallback()])


    trainer = LightGBMTrainer(train, scaling_config=ScalingConfig(num_workers=2))
    ```
    """


@told_of(WAYS_OUT)
class LightningTrainer(TorchTrainer):
    """PyTorch Lightning training of a module on several ranks, with recovery: on this machine, or with `backend` on a
    cluster.

    A TorchTrainer whose function makes a `lightning.pytorch.Trainer` with TrainJob's strategy and ReportCallback
    (`trainjob.lightning`) and fits the module with it, from the newest checkpoint on. `Result.return_value` has the
    last metrics. A run that was interrupted continues under the same name.

    - `module`: a LightningModule, or a class or function without arguments that makes one in each rank.
    - `datamodule`: a LightningDataModule or a DataLoader, or what makes one; None: the module has its data.
    - `trainer_config`: arguments of Lightning's Trainer, such as `{"max_epochs": 5}`, but for `strategy`.
    - `strategy`: `ddp`, or `fsdp`.
    - `every_n_train_steps`: a checkpoint each so many steps too; None: at the end of each epoch.
    - `scaling_config`, `run_config`, `torch_config`, `resume_from_checkpoint`, `backend`: as of a TorchTrainer.

    Raises ConfigError (a ValueError) that names the argument.

    ```python
    def module():
        from my_package import LitModel

        return LitModel(lr=0.01)


    trainer = LightningTrainer(module, trainer_config={"max_epochs": 5}, scaling_config=ScalingConfig(num_workers=2))
    ```
    """

    def __init__(
        self,
        module: Any,
        datamodule: Any = None,
        *,
        trainer_config: Mapping[str, Any] | None = None,
        strategy: str = "ddp",
        every_n_train_steps: int | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        torch_config: TorchConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        backend: Kubernetes | None = None,
    ) -> None:
        if strategy not in LightningLoop.STRATEGIES:
            raise ConfigError("strategy", strategy, f"give one of {', '.join(LightningLoop.STRATEGIES)}")
        if "strategy" in (trainer_config or {}):
            raise ConfigError("trainer_config", sorted(trainer_config or ()), "leave strategy out: it is strategy=...")
        super().__init__(
            LightningLoop(module, datamodule, strategy, every_n_train_steps),
            train_loop_config=trainer_config,
            scaling_config=scaling_config,
            run_config=run_config,
            torch_config=torch_config,
            resume_from_checkpoint=resume_from_checkpoint,
            backend=backend,
        )


@told_of(WAYS_OUT)
class TransformersTrainer(TorchTrainer):
    """Training with Hugging Face's Trainer on several ranks, with recovery: on this machine, or with `backend` on a
    cluster.

    A TorchTrainer whose function has `make_trainer` make the Trainer in each rank, prepares it
    (`trainjob.huggingface.prepare_trainer`) and calls its `train()`, from the newest checkpoint on.
    `Result.return_value` has what that measured. A run that was interrupted continues under the same name.

    - `make_trainer`: `f()` or `f(config)` that returns a `transformers.Trainer`, or one built on it.
    - `config`: what `f` is called with; absent: an empty dict.
    - `scaling_config`, `run_config`, `torch_config`, `resume_from_checkpoint`, `backend`: as of a TorchTrainer.

    Raises ConfigError (a ValueError) that names the argument.

    ```python
    def make_trainer(config):
        from my_package import data, model
        from transformers import Trainer, TrainingArguments

        settings = TrainingArguments("out", num_train_epochs=config["epochs"])
        return Trainer(model=model, args=settings, train_dataset=data)


    trainer = TransformersTrainer(make_trainer, config={"epochs": 3}, scaling_config=ScalingConfig(num_workers=2))
    ```
    """

    def __init__(
        self,
        make_trainer: Callable[..., Any],
        *,
        config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        torch_config: TorchConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        backend: Kubernetes | None = None,
    ) -> None:
        if not callable(make_trainer):
            raise ConfigError("make_trainer", make_trainer, "give a function that returns a transformers.Trainer")
        super().__init__(
            TransformersLoop(make_trainer),
            train_loop_config=config,
            scaling_config=scaling_config,
            run_config=run_config,
            torch_config=torch_config,
            resume_from_checkpoint=resume_from_checkpoint,
            backend=backend,
        )
