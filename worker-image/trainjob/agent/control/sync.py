"""The conversation with the coordinator: one long-poll POST after the other, whole states both ways.

Called by `agent`, which says when its state changed (`changed`) and takes the instructions. A change that matters is
posted at once, beside the poll that is open (which then no longer counts); small changes wait a little, progress for as
long as the coordinator asks for, and both for the answer to a poll that was left before: a coordinator that is slow is
asked on two connections, not on ever more.
Without a coordinator it keeps trying, for ever; each kind of trouble is said once.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Callable, Dict, List, Optional, Set

from trainjob.agent.background import within
from trainjob.agent.config import AgentConfig
from trainjob.agent.control.http_post import Answer, PostConnection, PostError, trust
from trainjob.agent.control.sync_trouble import (
    NoInstruction,
    Refused,
    TokenUnreadable,
    describe,
    is_certificate_trouble,
)
from trainjob_api import contract

PATH = "/v1/sync"
MARGIN_S = 10.0
"""Longer than the coordinator's own limit, so that it is the coordinator that ends a poll."""
FIRST_RETRY_S = 0.1
RETRY_CAP_S = 5.0
RETRY_AFTER_CAP_S = 60.0
"""A coordinator that asks for a longer pause is not believed."""
QUIET_CHANGE_S = 1.0
"""Small changes are posted at most this often, and progress where the coordinator says nothing else."""
PACE_CAP_S = 60.0
"""A coordinator that wants progress less often is not believed."""
LEAVING_S = 10.0
"""How long the answer to a superseded poll is waited for, to keep its connection: another one costs a coordinator that
is slow more.
"""

Report = Callable[[], contract.AgentReport]
OnReply = Callable[[contract.Instruction], None]


class Sync:
    """`run` until cancelled."""

    def __init__(self, config: AgentConfig, report: Report, on_reply: OnReply, say: Callable[[str], None]) -> None:
        self._config = config
        self._report = report
        self._on_reply = on_reply
        self._say = say
        self._seq = 0
        self._transition = -1
        self._connections: List[PostConnection] = []
        self._urgent = asyncio.Event()
        self._pace_s = QUIET_CHANGE_S
        self._due: Optional[asyncio.TimerHandle] = None
        """When what waits for its time is posted."""
        self._held = False
        """It has come, and a poll that was left is not answered yet."""
        self._last_post = 0.0
        self._alone_since: Optional[float] = None
        self._leaving: List[asyncio.Task[None]] = []
        self._troubles: Set[str] = set()
        """Kinds that were said since the last answer."""
        self._not_before = 0.0
        self._authority = config.coordinator_ca
        self._trust = trust(config.coordinator, config.coordinator_ca)

    def changed(self, urgent: bool) -> None:
        """The state is another; `urgent`: post now."""
        if urgent:
            self._urgent.set()
        else:
            self._post_by(self._last_post + QUIET_CHANGE_S)

    def progressed(self) -> None:
        """Training has come further, and nothing else changed."""
        self._post_by(self._last_post + self._pace_s)

    def _post_by(self, moment: float) -> None:
        if self._due is not None:
            if self._due.when() <= moment or self._held:
                return
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_at(moment, self._is_due)

    def _nothing_is_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due, self._held = None, False

    def _is_due(self) -> None:
        if any(not task.done() for task in self._leaving):
            self._held = True
        else:
            self._urgent.set()

    def alone_for(self, now: float) -> float:
        """Seconds since the coordinator was last heard."""
        return 0.0 if self._alone_since is None else now - self._alone_since

    async def run(self) -> None:
        """Post, take the answer, post again."""
        loop = asyncio.get_running_loop()
        self._alone_since = loop.time()
        delay = FIRST_RETRY_S
        while True:
            self._urgent.clear()
            self._nothing_is_due()
            if await self._turn():
                delay = FIRST_RETRY_S
                continue
            pause_s = self._not_before - loop.time()
            if pause_s > 0:  # asked for by the coordinator; nothing is so urgent that it could be taken in before
                await asyncio.sleep(pause_s)
                continue
            # Something urgent does not wait for the back-off, but no failure is answered without a pause.
            await asyncio.sleep(random.uniform(0.5, 1.0) * FIRST_RETRY_S)
            try:
                await within(self._urgent.wait(), random.uniform(0.5, 1.0) * delay)
            except asyncio.TimeoutError:
                pass
            delay = min(delay * 2, RETRY_CAP_S)

    async def last_word(self, timeout_s: float) -> None:
        """One more POST of the state as it is, whose answer does not count."""
        try:
            await within(self._post(is_last=True), timeout_s)
        except (OSError, PostError, ValueError, asyncio.TimeoutError):
            pass

    def close(self) -> None:
        """Drop the connections."""
        self._nothing_is_due()
        for task in self._leaving:
            task.cancel()
        for connection in self._connections:
            connection.close()

    async def _turn(self) -> bool:
        """One request, until its answer or until something urgent supersedes it. False: no answer."""
        self._last_post = asyncio.get_running_loop().time()
        request = asyncio.ensure_future(self._post())
        request.add_done_callback(_heard)
        news = asyncio.ensure_future(self._urgent.wait())
        try:
            await asyncio.wait(
                [request, news], timeout=contract.LONG_POLL_S + MARGIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            if request.done():
                self._take(request.result())
                return True
            if news.done():
                self._leave(request)
                return True
            self._complain(PostError("no answer in time"))
            request.cancel()
            # All of them lead to the one that is silent; its successor is found by a new one.
            for connection in self._connections:
                connection.close()
        except (OSError, PostError, ValueError, KeyError, TypeError, asyncio.TimeoutError) as error:
            self._complain(error)
        except asyncio.CancelledError:
            request.cancel()
            raise
        finally:
            news.cancel()
        return False

    def _leave(self, request: asyncio.Task[Dict[str, Any]]) -> None:
        """The coordinator ends a superseded poll at once; its connection can then be used again."""

        async def await_end() -> None:
            try:
                await within(request, LEAVING_S)
            except (OSError, PostError, ValueError, asyncio.TimeoutError):
                pass
            if self._held:
                self._urgent.set()

        task = asyncio.ensure_future(await_end())
        self._leaving = [t for t in self._leaving if not t.done()]
        self._leaving.append(task)

    async def _post(self, is_last: bool = False) -> Dict[str, Any]:
        headers = {"Content-Type": "application/json", **self._authorization()}
        connection = next((c for c in self._connections if c.usable), None) or await self._connect()
        self._seq += 1
        body = json.dumps({**self._report(), "seq": self._seq, "last": is_last}, separators=(",", ":")).encode()
        answer = await connection.post(self._config.coordinator.path + PATH, headers, body)
        if answer.status != 200:
            self._refused(answer)
        return _told(answer.body)

    def _authorization(self) -> Dict[str, str]:
        if self._config.token_file is None:
            return {}
        try:
            with open(self._config.token_file, encoding="ascii") as file:
                return {"Authorization": f"Bearer {file.read().strip()}"}
        except (OSError, ValueError) as error:
            raise TokenUnreadable(f"{self._config.token_file}: {error}") from None

    async def _connect(self) -> PostConnection:
        connection = PostConnection(self._config.coordinator, self._trust)
        try:
            await connection.open(MARGIN_S)
        except OSError as error:
            if is_certificate_trouble(error):
                self._look_for_another_authority()
            raise
        self._connections = [c for c in self._connections if not c.closed]
        self._connections.append(connection)
        return connection

    def _look_for_another_authority(self) -> None:
        """The installation may have another CA than the one that we believe; the next try believes that alone."""
        try:
            with open(self._config.coordinator_ca_file or "", encoding="ascii") as file:
                told = file.read().strip()
            if told and told != (self._authority or "").strip():
                self._trust, self._authority = trust(self._config.coordinator, told), told
                self._say("the coordinator's CA is another one now, by this pod's annotation")
        except (OSError, ValueError):
            pass  # no file, or nothing in it that is a certificate: what is believed stays

    def _refused(self, answer: Answer) -> None:
        """Raises Refused. A coordinator that asks us to come again later is there: we are not alone."""
        if answer.retry_after_s is not None:
            now = asyncio.get_running_loop().time()
            self._alone_since = now
            # Jitter: those who were refused together must not come back together.
            self._not_before = now + random.uniform(1.0, 1.5) * min(answer.retry_after_s, RETRY_AFTER_CAP_S)
        raise Refused(answer)

    def _take(self, reply: Dict[str, Any]) -> None:
        """A reply of an operator that no longer leads is ignored."""
        transition, instruction = reply["transition"], reply["instruction"]
        self._pace_s = _pace_s(reply.get("pace_s"))
        self._alone_since = asyncio.get_running_loop().time()
        if self._troubles:
            self._troubles.clear()
            self._say("the coordinator answers again")
        if transition >= self._transition:
            self._transition = transition
            self._on_reply(instruction)

    def _complain(self, error: Exception) -> None:
        """Once per kind of trouble, not per try."""
        trouble = describe(error, self._config)
        if trouble.kind not in self._troubles:
            self._troubles.add(trouble.kind)
            self._say(f"{trouble.sentence}; training continues, trying again")


def _heard(request: asyncio.Task[Dict[str, Any]]) -> None:
    """An error that comes when nobody waits for the answer any more (the agent stops) is no fault of the agent's."""
    if not request.cancelled():
        request.exception()


def _told(body: bytes) -> Dict[str, Any]:
    """What a coordinator says: a transition, and what to do. Raises NoInstruction."""
    try:
        reply = json.loads(body)
        if isinstance(reply["transition"], int) and isinstance(reply["instruction"]["do"], str):
            return dict(reply)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NoInstruction(body)


def _pace_s(told: object) -> float:
    """What is no length of time counts as not said."""
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return QUIET_CHANGE_S
    return min(max(QUIET_CHANGE_S, told), PACE_CAP_S)
