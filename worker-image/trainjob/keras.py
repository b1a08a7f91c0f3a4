"""Keras in a TrainJob: see `trainjob.integrations.keras`."""

from __future__ import annotations

from trainjob.integrations.keras import *  # noqa: F403
from trainjob.integrations.keras import __all__  # noqa: F401
