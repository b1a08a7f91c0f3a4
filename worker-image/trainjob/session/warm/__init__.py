"""The warm parent: a process that has imported what ranks import, and of which each rank is a fork.

Started by the agent, under the interpreter, flags, environment and working folder of the job. `parent` imports, checks
itself (`fitness`) and forks; a fork waits at its `gate` and then becomes what `python script.py` would be (`becoming`),
by the same boot as any rank (`session.rank`). One thread, no CUDA, nothing of the user's own code.
"""

from __future__ import annotations
