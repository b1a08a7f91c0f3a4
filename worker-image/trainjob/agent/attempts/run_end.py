"""Rank 0's agent: when the run is complete, and what is written then.

Made by `leader` when the join is answered.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Optional, Set

from trainjob.agent.background import Background
from trainjob.agent.barriers.collectives import Collectives
from trainjob.agent.barriers.history import History
from trainjob.agent.committing.commits import Commits
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire.from_leader import Completed, Tell, Unstored
from trainjob_api import last_word

POLL_S = 0.2
STORING_WORD_S = 10.0
"""How often it is said that all ranks have ended and storage is waited for."""


class RunEnd:
    """One per attempt. `expected`: processes that have to end with 0."""

    def __init__(
        self, site: Site, tell: Tell, expected: int, collectives: Collectives, commits: Commits, history: History
    ) -> None:
        self._site = site
        self._tell = tell
        self._expected = expected
        self._collectives = collectives
        self._commits = commits
        self._history = history
        self._background = Background(site.on_fault)
        self._ok: Set[int] = set()
        self._ending = False
        self._writing: Optional[asyncio.Task[None]] = None
        self._impatient = False

    def is_at_work(self, gone: Set[int]) -> bool:
        """Whether the end record is on its way, or a checkpoint that lacks no share of these members."""
        is_being_written = self._writing is not None and not self._writing.done()
        return is_being_written or not (self._commits.drained or self._commits.waits_only_for(gone))

    def close(self) -> None:
        """The attempt is over."""
        self._background.cancel()

    def ended_well(self, rank: int) -> None:
        """This rank's process has ended with 0."""
        self._ok.add(rank)
        self.look()

    def look(self) -> None:
        """All ranks ended with 0, none while it was needed, and nothing is on its way to storage: the run is
        complete.
        """
        if len(self._ok) != self._expected or self._ending:
            return
        if self._collectives.needed:
            return  # the agents of those that were needed say so of them
        if self._commits.failed is not None:
            # No rank is left that a report() could tell.
            self._ending = True
            self._tell(0, Unstored(self._commits.failed))
        elif self._commits.drained:
            self._ending = True
            self._writing = self._background.task(self._end())
        elif not self._impatient:
            self._impatient = True
            self._background.spawn(self._say_what_is_awaited())

    async def finish(self, gone: Callable[[], Set[int]]) -> None:
        """Before the agent ends: what was reported reaches the history, what is staged is committed. As long as it
        takes; the caller has the clock. `gone`: members that went away take their shares with them.
        """
        await self._flush_history()
        while not self._commits.drained and not self._commits.waits_only_for(gone()):
            await self._commits.until_drained(POLL_S)
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def forbid(self) -> None:
        """From now on no end record is written: whether there is one is being looked at."""
        self._ending = True
        self._background.cancel()

    async def _say_what_is_awaited(self) -> None:
        """Training is over and storage takes its time, or refuses: the job is not stuck, and the user can do
        something.
        """
        while True:
            await asyncio.sleep(STORING_WORD_S)
            if self._ending or not self._commits.on_their_way:
                return
            names = ", ".join(self._commits.on_their_way)
            trouble = self._commits.trouble
            why = "" if trouble is None else f". It is tried until then, or until you stop the job: {trouble}"
            self._site.console.say(
                f"all ranks have ended; the job completes as soon as storage has taken checkpoint {names}{why}"
            )

    async def _end(self) -> None:
        progress, commits = self._collectives.progress, self._commits
        latest = commits.latest
        await self._flush_history()
        kept = {"latest": latest, "best": commits.best, "checkpoint_count": commits.count}
        shown = last_word.shown_of({"progress": progress, **kept})
        await self._commits.write_end(
            {
                "attempt": self._collectives.attempt,
                "position": progress["position"],
                "metrics": progress["metrics"],
                "checkpoint": latest and latest["id"],
                "shown": shown,
            }
        )
        self._tell(None, Completed(shown))

    async def _flush_history(self) -> None:
        try:
            await self._history.flush()
        except StorageError as error:
            self._site.warn(f"The history cannot be written: {error}")
