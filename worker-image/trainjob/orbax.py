"""Orbax in a TrainJob: see `trainjob.integrations.orbax`."""

from __future__ import annotations

from trainjob.integrations.orbax import *  # noqa: F403
from trainjob.integrations.orbax import __all__  # noqa: F401
