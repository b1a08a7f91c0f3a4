"""LightGBM as a TrainJob: see `trainjob.integrations.lightgbm`."""

from __future__ import annotations

from trainjob.integrations.lightgbm import *  # noqa: F403
from trainjob.integrations.lightgbm import __all__  # noqa: F401
