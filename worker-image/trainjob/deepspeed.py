"""DeepSpeed as a TrainJob: see `trainjob.integrations.deepspeed`."""

from __future__ import annotations

from trainjob.integrations.deepspeed import *  # noqa: F403
from trainjob.integrations.deepspeed import __all__  # noqa: F401
