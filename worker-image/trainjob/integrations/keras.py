"""Keras: what `fit` has learned as the job's checkpoint, at the ends of epochs.

```python
begin = trainjob.keras.load(model)
model.fit(data, epochs=10, initial_epoch=begin, callbacks=[trainjob.keras.ReportCallback()])
```

Keras 3 with whatever backend, or Keras 2 (`tf_keras`), whichever the script uses. Ray's name for the callback is in
`trainjob.compat.ray_keras`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from typing import Any, Dict, List, Optional

from trainjob.integrations.needed import missing
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError, TrainJobError

__all__ = ["ReportCallback", "load"]

FILE = "model.keras"
"""The model inside the checkpoint, with its optimizer: `keras.models.load_model` reads it."""
_REST = "rest.npz"
"""How many epochs it has behind it, and what Keras 3 leaves out of its file: where its random numbers stand."""
_EPOCHS = "epochs"
_LEGACY = "TF_USE_LEGACY_KERAS"


def _keras() -> Any:
    """The Keras that the script's TensorFlow means, of the two that there are: their classes know nothing of each
    other.
    """
    is_legacy = "tf_keras" in sys.modules or os.environ.get(_LEGACY, "").lower() in ("1", "true")
    name = "tf_keras" if is_legacy else "keras"
    try:
        return import_module(name)
    except ImportError as error:
        raise missing(name, "tf_keras>=2.16" if is_legacy else "keras>=3", error) from error


keras: Any = _keras()
import numpy as np  # noqa: E402  # behind Keras, which brings it along: without it the sentence is about Keras


class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports at the end of each epoch what `fit` measured, and with each n-th, and the last, the model with its
    optimizer.

    - `every_n_epochs`: a whole number from 1.
    - `checkpoint=False`: metrics alone.
    - a planned change (another size, a restart, a suspension) that waits for a checkpoint gets one at the epoch's end.

    All ranks give it to `fit`. Under a strategy over several workers all of them save, as TensorFlow wants it, and rank
    0's file is the checkpoint.
    """

    def __init__(self, every_n_epochs: int = 1, checkpoint: bool = True) -> None:
        super().__init__()
        if not isinstance(every_n_epochs, int) or every_n_epochs < 1:
            raise ValueError(f"ReportCallback(every_n_epochs={every_n_epochs!r}): a whole number of 1 or more")
        self._every, self._checkpoint = every_n_epochs, checkpoint

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """`epoch` counts from 0, also where `initial_epoch` is another."""
        done, epochs = epoch + 1, (self.params or {}).get("epochs")
        metrics = {**numbers(logs), "epoch": done}
        wished = calls.checkpoint_requested()
        if self._checkpoint and (wished or done % self._every == 0 or done == epochs):
            report_with(self.model, metrics, done, step=done, total_steps=epochs)
        else:
            calls.report(metrics, step=done, total_steps=epochs)


def load(model: Any) -> int:
    """Bring the newest checkpoint into the model and its optimizer; the number of the epoch that `fit` begins with, for
    its `initial_epoch`. 0: there is no checkpoint.

    The model is built and compiled. Every rank calls it. Raises CheckpointError where ReportCallback has not made the
    checkpoint.
    """
    checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return 0
    if not model.built:
        raise TrainJobError("build the model before trainjob.keras.load(): begin it with keras.Input, or call build().")
    _build_optimizer(model)
    with checkpoint.as_directory() as folder:
        path = os.path.join(folder, _REST)
        if not os.path.isfile(path):
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} holds no {_REST}: it was not reported by "
                "trainjob.keras.ReportCallback. Load it yourself, or start over with --fresh."
            )
        model.load_weights(os.path.join(folder, FILE))
        with np.load(path) as rest:
            for number, variable in enumerate(_left_out(model)):
                variable.assign(rest[str(number)])
            return int(rest[_EPOCHS])


def report_with(model: Any, metrics: Dict[str, Any], epochs: int, **progress: Any) -> None:
    """From all ranks: `metrics`, with the model as it is after so many epochs."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, FILE))  # on all ranks: a strategy's variables are read by all or by none
        rest: Dict[str, Any] = {str(number): np.asarray(each) for number, each in enumerate(_left_out(model))}
        rest[_EPOCHS] = np.asarray(epochs)
        np.savez(os.path.join(folder, _REST), **rest)
        brings = calls.get_context().rank == 0
        checkpoint = Checkpoint.from_directory(folder) if brings else None
        calls.report(metrics, checkpoint=checkpoint, delete_local_checkpoint_after_upload=brings, **progress)


def numbers(logs: Optional[Dict[str, Any]]) -> Dict[str, float]:
    """What Keras has measured: numbers, some of them arrays of one."""
    return {name: float(value) for name, value in (logs or {}).items() if getattr(value, "ndim", 0) == 0}


def _left_out(model: Any) -> List[Any]:
    """Variables that are no weights: in the same order each time."""
    weights = {id(weight) for weight in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _build_optimizer(model: Any) -> None:
    """With its variables, in the strategy of the model: what is loaded goes into them."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or getattr(optimizer, "built", False):
        return
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None:
        optimizer.build(model.trainable_variables)
    else:
        with strategy.scope():
            optimizer.build(model.trainable_variables)
