"""What LightningTrainer and TransformersTrainer run in each rank: callables that carry what the user gave.

Made in the launcher, pickled, called in the ranks: their libraries are imported there alone.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Mapping, Optional


class LightningLoop:
    """`Trainer.fit` of a module, on all ranks."""

    STRATEGIES = ("ddp", "fsdp")

    def __init__(self, module: Any, datamodule: Any, strategy: str, every_n_steps: Optional[int]) -> None:
        self._module, self._datamodule = module, datamodule
        self._strategy, self._every_n_steps = strategy, every_n_steps
        # Where the user's code is: its imports are what ranks are forked with.
        self.__module__ = _home(module)

    def __call__(self, config: Dict[str, Any]) -> Dict[str, float]:
        """`config`: arguments of Lightning's Trainer. Returns the last metrics."""
        from trainjob.integrations import lightning
        from trainjob.integrations.lightning.library import pl

        made = lightning.TrainJobFSDPStrategy() if self._strategy == "fsdp" else lightning.TrainJobDDPStrategy()
        arguments = dict(config)
        report = lightning.ReportCallback(every_n_train_steps=self._every_n_steps)
        callbacks = [*_listed(arguments.pop("callbacks", None)), report]
        trainer = pl.Trainer(strategy=made, callbacks=callbacks, **arguments)
        module, datamodule = _made(self._module), _made(self._datamodule)
        data = {"train_dataloaders": datamodule} if _is_loader(datamodule) else {"datamodule": datamodule}
        lightning.prepare_trainer(trainer).fit(module, **data, ckpt_path="auto")
        return {name: float(value) for name, value in trainer.callback_metrics.items()}


class TransformersLoop:
    """`train()` of the Trainer that the user's function makes, on all ranks."""

    def __init__(self, make_trainer: Callable[..., Any]) -> None:
        self._make_trainer = make_trainer
        self.__module__ = _home(make_trainer)

    def __call__(self, config: Dict[str, Any]) -> Dict[str, Any]:
        """Returns what its `train()` measured."""
        from trainjob.integrations import huggingface

        wanted = inspect.signature(self._make_trainer).parameters
        trainer = self._make_trainer(config) if wanted else self._make_trainer()
        done: Mapping[str, Any] = huggingface.prepare_trainer(trainer).train().metrics
        return dict(done)


def _home(given: Any) -> str:
    return getattr(given, "__module__", None) or type(given).__module__


def _made(given: Any) -> Any:
    """What a class or a function makes, else what was given."""
    return given() if inspect.isclass(given) or inspect.isfunction(given) else given


def _is_loader(data: Any) -> bool:
    """Whether it is data to iterate over, and no LightningDataModule."""
    return data is not None and not hasattr(data, "train_dataloader")


def _listed(given: Any) -> Any:
    return given if isinstance(given, (list, tuple)) else [] if given is None else [given]
