"""Keras in a TrainJob: see `trainjob.integrations.keras`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.integrations.keras import *  # noqa: F403
from trainjob.integrations.keras import __all__
from trainjob.session import unknown_name

if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has every name
    __getattr__ = unknown_name.getter(__name__, __all__)
