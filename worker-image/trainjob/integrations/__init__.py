"""Other libraries' training loops as TrainJobs: one module each, imported by the user's script alone.

`trainjob.lightning`, `trainjob.huggingface`, `trainjob.deepspeed`, `trainjob.jax`, `trainjob.orbax`,
`trainjob.tensorflow`, `trainjob.keras`, `trainjob.xgboost` and `trainjob.lightgbm` are their public names. A module
imports its library at its top, if it needs it, and nothing of the others; nothing else in `trainjob` imports from here.
"""

from __future__ import annotations
