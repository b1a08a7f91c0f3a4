"""XGBoost as a TrainJob: see `trainjob.integrations.xgboost`."""

from __future__ import annotations

from trainjob.integrations.xgboost import *  # noqa: F403
from trainjob.integrations.xgboost import __all__  # noqa: F401
