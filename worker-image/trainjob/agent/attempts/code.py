"""Brings the code that `tj submit` left in the job's storage to the working directory. Called by `attempt` before
its ranks start; once per agent.
"""

from __future__ import annotations

import os

from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError


async def bring(site: Site) -> None:
    """Nothing happens where no code was left, or once it is here. Raises StorageError; an attempt later it is tried
    again.
    """
    key = site.config.code
    if key is None or site.code_is_here:
        return
    if site.storage is None:
        raise StorageError(
            "invalid",
            "the code of this job was left in its storage, and it has none any more (spec.checkpoint.storage): "
            "submit it again",
        )
    reply = await site.storage.call("code", {"key": key, "into": os.getcwd()})
    site.code_is_here = True
    site.console.say(f"the code is here: {reply['files']} files in {os.getcwd()}")
