"""The end of an agent's storing: as long as bytes move somewhere, what was acknowledged is stored and committed.

Called by `agent` when it is told to exit or hold, or its pod goes away; also by one that was started anew with its
container and has no attempt: what lies in its staging was acknowledged by the agent before it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Awaitable, Callable, Optional

from trainjob.agent.background import within
from trainjob.agent.standstill import Standstill
from trainjob.agent.storing.saving import Saving
from trainjob.agent.storing.storage import StorageChild, StorageError

if TYPE_CHECKING:
    from trainjob.agent.attempts.attempt import Attempt

LOOK_S = 1.0
"""How often it is looked whether something has moved."""
GIVE_UP_S = 10.0
"""For what is written when a job has failed, on a storage that may hang."""


async def finish(attempt: Optional[Attempt], saving: Saving) -> None:
    """Until everything is stored that is held here, and committed what everybody has stored. As long as it takes."""
    if attempt is not None:
        await attempt.finish()
        if attempt.is_complete:
            return  # all that the run has is on storage, and it is over
    await saving.commit_what_is_left()


async def settle(attempt: Optional[Attempt], saving: Saving, stall_s: float) -> None:
    """Before this agent looks for the run's end record: what may still complete the run does so, as long as bytes move,
    and after that nothing writes one any more. A job that failed because of the look must not be complete on storage.
    """
    await while_it_moves(finish(attempt, saving), lambda: moved(attempt, saving), stall_s)
    if attempt is not None and attempt.leader is not None:
        attempt.leader.forbid_end()


async def give_up_validations(run: int, storage: StorageChild, say: Callable[[str], None]) -> None:
    """The job has failed for good: what rank 0 was to validate nobody will."""
    asked = storage.call("give_up_validations", {"run": run})
    try:
        given_up = (await within(asked, GIVE_UP_S))["checkpoints"]
    except (StorageError, asyncio.TimeoutError) as error:
        say(f"what was to be validated cannot be given up: {str(error) or 'the storage does not answer'}")
        return
    if given_up:
        names = ", ".join(given_up)
        say(f"to be validated when the job failed, and counted as failed: {names}")


def moved(attempt: Optional[Attempt], saving: Saving) -> object:
    """Another value whenever a byte was stored, by whichever worker as far as it is known here."""
    commits = None if attempt is None or attempt.leader is None else attempt.leader.commits
    return saving.moved, None if commits is None else commits.moved_at


async def while_it_moves(
    work: Awaitable[None], moves: Callable[[], object], stall_s: float, still: Optional[Standstill] = None
) -> bool:
    """Wait for `work`, but give it up once `moves()` has been the same for that long; whether it was done."""
    working, still = asyncio.ensure_future(work), still or Standstill()
    try:
        while not working.done():
            left_s = stall_s - still.for_s(moves(), asyncio.get_running_loop().time())
            if left_s <= 0:
                return False
            await asyncio.wait([working], timeout=min(left_s, LOOK_S))
        return True
    finally:
        working.cancel()
