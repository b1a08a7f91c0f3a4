"""The open polls of all agents: by job and pod, one each. Used by the coordinator, which says what is answered.

A poll that waits is its record here and a timer; no task waits for it. What ends it calls back, in a step of the event
loop of its own: thousands may end at once, and each is answered with what is right then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trainjob_api import contract
from trainjob_operator.agents.answers import Answer, fault
from trainjob_operator.agents.reports import Asker
from trainjob_operator.cluster import JobKey

_log = logging.getLogger(__name__)


class Poll:
    """An open request of one pod; an `answers.Held`."""

    __slots__ = ("_answered", "_polls", "_timer", "answered", "asker")

    def __init__(self, polls: Polls, asker: Asker) -> None:
        self.asker = asker
        self.answered = False
        """It is held no longer."""
        self._polls = polls
        self._answered: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def answer(self) -> None:
        """It is held no longer."""
        if self.answered:
            return
        self.answered = True
        if self._answered is not None:
            self._stop_timer()
            asyncio.get_running_loop().call_soon(self._end)

    def then(self, answered: Callable[[Answer], None]) -> None:
        """Until it is answered, or has been open for as long as a poll may be."""
        loop = asyncio.get_running_loop()
        self._answered = answered
        if self.answered:
            loop.call_soon(self._end)
        else:
            self._timer = loop.call_later(contract.LONG_POLL_S, self.answer)

    def hang_up(self) -> None:
        """Its agent no longer waits."""
        self._answered, self.answered = None, True
        self._stop_timer()
        self._polls.close(self)

    def _end(self) -> None:
        answered, self._answered = self._answered, None
        self._polls.close(self)
        if answered is None:  # it hung up meanwhile
            return
        try:
            answer = self._polls.reply(self.asker)
        except Exception:
            _log.exception("a poll of pod %s could not be answered", self.asker.pod_uid)
            answer = fault()
        answered(answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Polls:
    """Of one coordinator. `reply` says what an agent is told now."""

    def __init__(self, reply: Callable[[Asker], Answer]) -> None:
        self.reply = reply
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
        polls[asker.pod_uid] = poll = Poll(self, asker)
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
