"""The open polls of all agents: by job and pod, one each. Used by the coordinator, which says what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from trainjob_api import contract
from trainjob_operator.agents.reports import Asker
from trainjob_operator.cluster import JobKey


@dataclass(eq=False)
class Poll:
    """An open request of one pod."""

    asker: Asker
    over: asyncio.Future[None]

    @property
    def answered(self) -> bool:
        return self.over.done()

    def answer(self) -> None:
        """It is held no longer."""
        if not self.over.done():
            self.over.set_result(None)

    async def wait(self) -> None:
        """Until it is answered, or has been open for as long as a poll may be."""
        # A timer and a future: what each of thousands of agents that wait costs.
        end = asyncio.get_running_loop().call_later(contract.LONG_POLL_S, self.answer)
        try:
            await self.over
        finally:
            end.cancel()


class Polls:
    """Of one coordinator."""

    def __init__(self) -> None:
        self._open: dict[JobKey, dict[str, Poll]] = {}

    def __len__(self) -> int:
        """Agents whose poll is open now."""
        return sum(len(polls) for polls in self._open.values())

    @property
    def jobs(self) -> int:
        """Jobs that they are of."""
        return len(self._open)

    def open(self, asker: Asker) -> Poll:
        """A new one; an older one of the same pod is answered, its agent no longer waits for it."""
        polls = self._open.setdefault(asker.key, {})
        older = polls.get(asker.pod_uid)
        if older is not None:
            older.answer()
        polls[asker.pod_uid] = poll = Poll(asker, asyncio.get_running_loop().create_future())
        return poll

    def close(self, poll: Poll) -> None:
        """It is over: answered, or its agent has hung up."""
        polls = self._open.get(poll.asker.key, {})
        if polls.get(poll.asker.pod_uid) is poll:
            del polls[poll.asker.pod_uid]
            if not polls:
                del self._open[poll.asker.key]

    def answer(self, key: JobKey, pod_uid: str) -> None:
        """The poll of one pod, if it is open."""
        poll = self._open.get(key, {}).get(pod_uid)
        if poll is not None:
            poll.answer()

    def answer_those(self, key: JobKey, has_news: Callable[[Asker], bool]) -> None:
        """Of one job, those for whom there is news."""
        for poll in self._open.get(key, {}).values():
            if not poll.answered and has_news(poll.asker):
                poll.answer()

    def answer_all(self) -> None:
        """Of all jobs."""
        for polls in self._open.values():
            for poll in polls.values():
                poll.answer()
