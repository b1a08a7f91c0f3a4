"""LightGBM as a TrainJob: see `trainjob.integrations.lightgbm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.integrations.lightgbm import *  # noqa: F403
from trainjob.integrations.lightgbm import __all__
from trainjob.session import unknown_name

if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has every name
    __getattr__ = unknown_name.getter(__name__, __all__)
