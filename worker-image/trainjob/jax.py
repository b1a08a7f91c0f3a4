"""JAX as a TrainJob: see `trainjob.integrations.jax`."""

from __future__ import annotations

from trainjob.integrations.jax import *  # noqa: F403
from trainjob.integrations.jax import __all__  # noqa: F401
