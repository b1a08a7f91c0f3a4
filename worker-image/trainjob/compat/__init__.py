"""Names of other libraries, so that loops written for them run as they stand: `from trainjob.compat import ray`.

Nothing here does anything of its own: each name is one of ours under theirs. Nobody in `trainjob` imports it.
"""

from __future__ import annotations
