"""The look for a run's end record, when nobody is left who could say how training ended. It starts nothing.

Called by `agent` when it is told `check`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Mapping, NamedTuple, Optional

from trainjob.agent.storing.storage import StorageChild, StorageError
from trainjob_api import last_word

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Between two tries at a storage that does not answer well. A job must not wait for ever for its verdict."""


class Found(NamedTuple):
    """What storage holds of this job."""

    run: Optional[int]
    """None: it never claimed a run, or storage could not be read."""
    completed: bool
    trouble: Optional[str] = None
    """Why storage could not be read."""
    shown: Mapping[str, Any] = {}
    """What is shown of a complete run (`last_word.SHOWN`)."""


async def look(storage: Optional[StorageChild], job_uid: str, say: Callable[[str], None]) -> Found:
    """Ask storage, again and again for a minute if it cannot be read."""
    if storage is None:
        return Found(None, False)
    said = ""
    for pause_s in (*PAUSES_S, None):
        try:
            answer = await storage.call("ended", {"job_uid": job_uid})
            return Found(answer["run"], bool(answer["completed"]), shown=last_word.shown_of(answer.get("shown")))
        except StorageError as error:
            trouble = f"The storage cannot be read, so nobody knows whether the run had completed: {error}"
            if trouble != said:
                said = trouble
                say(trouble)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
    return Found(None, False, said)
