"""TensorFlow over the ranks of a TrainJob: the TF_CONFIG that its strategies read.

```python
trainjob.tensorflow.set_tf_config()
strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()
```

A script that leaves the first line out has it said when it makes the strategy (`session.unchanged`).
TensorFlow itself is not imported here. Keras 3's own loops do not run under such a strategy: they are refused.
What `fit` reports and resumes is in `keras.py`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from types import ModuleType
from typing import Any, Callable, Dict

from trainjob.integrations.ring import free_port, gathered, joined, own_address
from trainjob.session import calls
from trainjob.session.errors import TrainJobError
from trainjob.session.on_import import on_import

__all__ = ["set_tf_config"]

VARIABLE = "TF_CONFIG"
_KERAS_LOOPS = ("fit", "evaluate", "predict")


def set_tf_config() -> Dict[str, Any]:
    """Tells TensorFlow of all ranks by the environment variable TF_CONFIG, and gives what it says: `cluster`, with an
    address of each rank under `worker`, and this rank's `task`. Rank 0 is what TensorFlow calls the chief.

    Every rank calls it, before a strategy is made, and anew in each attempt: the ports are those of this attempt. With
    one rank the variable is removed, as no strategy over several is wanted.

    With several ranks `fit`, `evaluate` and `predict` of a Keras 3 model under MultiWorkerMirroredStrategy raise
    TrainJobError from now on: they do not run there.
    """
    context = calls.get_context()
    if context.world_size == 1:
        os.environ.pop(VARIABLE, None)
        return {}
    workers = gathered(joined(own_address(), free_port()))
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": context.rank}}
    os.environ[VARIABLE] = json.dumps(config)
    on_import("keras", _refuse_loops)
    return config


def _refuse_loops(keras: ModuleType) -> None:
    """Of Keras 3 alone: tf_keras is Keras 2, under a name of its own."""
    if not str(keras.__version__).startswith("2."):
        for name in _KERAS_LOOPS:
            loop = getattr(keras.Model, name)
            if not hasattr(loop, "refuses"):
                setattr(keras.Model, name, _refusing(name, loop))


def _refusing(name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(loop)
    def checked(model: Any, *arguments: Any, **named: Any) -> Any:
        tensorflow: Any = sys.modules.get("tensorflow")
        # Keras may compute with another library, whose models know of no strategy.
        strategy = getattr(model, "distribute_strategy", None) if tensorflow is not None else None
        if strategy is not None and isinstance(strategy, tensorflow.distribute.MultiWorkerMirroredStrategy):
            raise TrainJobError(
                f"Keras 3's {name}() does not run under MultiWorkerMirroredStrategy: write the training loop yourself "
                "(as examples/keras does), or use Keras 2 (pip install tf_keras, with TF_USE_LEGACY_KERAS=1 set before "
                "tensorflow is imported)."
            )
        return loop(model, *arguments, **named)

    checked.refuses = True  # type: ignore[attr-defined]
    return checked
