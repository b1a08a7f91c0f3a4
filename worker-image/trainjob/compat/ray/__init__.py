"""`from trainjob.compat import ray`: what training loops use of Ray, answered by TrainJob.

Which names there are stands in `ray_names.py`; `finder.py` makes the modules below this one.
"""

from __future__ import annotations

from trainjob.compat import finder

finder.install()
__getattr__ = finder.attributes("ray")
