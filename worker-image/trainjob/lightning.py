"""PyTorch Lightning as a TrainJob: see `trainjob.integrations.lightning`."""

from __future__ import annotations

from trainjob.integrations.lightning import *  # noqa: F403
from trainjob.integrations.lightning import __all__  # noqa: F401
