"""TensorFlow as a TrainJob: see `trainjob.integrations.tensorflow`."""

from __future__ import annotations

from trainjob.integrations.tensorflow import *  # noqa: F403
from trainjob.integrations.tensorflow import __all__  # noqa: F401
