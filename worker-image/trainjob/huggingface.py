"""Hugging Face Transformers as a TrainJob: see `trainjob.integrations.huggingface`."""

from __future__ import annotations

from trainjob.integrations.huggingface import *  # noqa: F403
from trainjob.integrations.huggingface import __all__  # noqa: F401
