"""Where agents sync: takes their reports, answers with instructions, and tells the reconciler whose job to look at.

The reconciler commits what it read or wrote; the launcher or the operator's main starts the endpoint. Long polls,
clocks and wake-ups are here; what is remembered and said is `roster.py`, bytes and sockets are `endpoint.py`. It never
writes to the cluster.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from trainjob_api.contract import SyncReply
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.answers import Answer, Held, Known, Read, refusal
from trainjob_operator.agents.callers import Authenticate, Caller
from trainjob_operator.agents.endpoint import Endpoint
from trainjob_operator.agents.owners import FindOwner, Owners
from trainjob_operator.agents.polls import Polls
from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.agents.reports import Asker, BadReport, Report, parse_report
from trainjob_operator.agents.roster import News, Outdated, Roster
from trainjob_operator.agents.silence_watch import SilenceWatch
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import ClusterError, JobKey
from trainjob_operator.core.model import AgentView, PodView

START_GRACE_S = 10.0
"""So long after its start the coordinator takes no job's absence for granted: the first reads are under way."""
RECHECK_S = 0.005
"""Reports that change what others are told (the leader's address) are gathered for so long before open polls are
looked through.
"""
TOKEN_RETRY_S = 5.0
"""An agent whose token cannot be checked now is asked to wait so long."""
PROGRESS_RATE = 200
"""Reports of mere progress that are wanted in a second, of all jobs together: more would be shown to nobody."""
PACE_LEAST_S, PACE_MOST_S = 1.0, 10.0
"""Between two such reports of a job."""


EnqueueAfter = Callable[[JobKey, float], None]
"""Ask for a turn of a job in so many seconds."""


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, why: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.why = why
        """For the count of refusals."""


class Coordinator:
    """One per operator process. `transition` counts changes of leadership."""

    def __init__(
        self, *, clock: Clock, authenticate: Authenticate, find_owner: FindOwner, master_key: bytes, transition: int = 0
    ) -> None:
        self.listening_since = clock.steady()
        self.refusals: Counter[str] = Counter()
        self.syncs = 0
        """Requests, refused ones included."""
        self._clock = clock
        self._authenticate = authenticate
        self._owners = Owners(find_owner)
        self._transition = transition
        self._roster = Roster(master_key)
        self._limit = RateLimit[tuple[JobKey, str]]()
        self._polls = Polls(self._reply)
        self._asked: dict[JobKey, set[str]] = {}
        """UIDs of pods whose next word is waited for; none that was not there at the job's last commit."""
        self._rechecks: set[JobKey] = set()
        self._silence = SilenceWatch(clock, self._silence_due, lambda key: self._enqueue(key, 0.0))
        self._enqueue: EnqueueAfter = lambda key, delay_s: None
        self._show_progress: Callable[[JobKey], None] = lambda key: None
        self._hurry: Callable[[JobKey], None] = lambda key: None
        self._grace_ends = clock.monotonic() + START_GRACE_S
        self._closing = False
        self._endpoint = Endpoint(self.answer, self._health, self._refused)

    # --- For the reconciler -------------------------------------------------------------------------------------------

    def listen(
        self, enqueue: EnqueueAfter, show_progress: Callable[[JobKey], None], hurry: Callable[[JobKey], None]
    ) -> None:
        """Where to ask for turns, for those that somebody waits for, and where to say that there is mere progress to
        be shown.
        """
        self._enqueue = enqueue
        self._show_progress = show_progress
        self._hurry = hurry

    def views(self, key: JobKey) -> Mapping[str, AgentView]:
        """What the job's agents last said, by pod UID."""
        return self._roster.views(key)

    def commit(self, job: TrainJob, pods: Iterable[PodView]) -> None:
        """The job as it was read or written: from now on agents are answered from it, those who wait at once."""
        pods = tuple(pods)
        if self._roster.commit(job, pods, self._clock.steady()):
            self._recheck(job.key)
        for uid in self._asked.get(job.key, set()) - {pod.uid for pod in pods if pod.owned}:
            self._was_asked(job.key, uid)
        self._silence.watch(job.key)

    def connected(self) -> int:
        """Agents whose poll is open now."""
        return len(self._polls)

    def unknown(self) -> int:
        """Connections on which nobody has shown a good token yet."""
        return self._endpoint.unknown

    def forget(self, key: JobKey) -> None:
        """A read found no such job: its agents are sent home."""
        self._roster.forget(key)
        self._asked.pop(key, None)
        self._recheck(key)
        self._silence.forget(key)

    def leave(self, key: JobKey) -> None:
        """The job is another's to look after: its agents are told nothing, and what runs goes on."""
        self._roster.leave(key)
        self._asked.pop(key, None)
        self._recheck(key)
        self._silence.forget(key)

    # --- For agents ---------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> str:
        """Listen for agents, with TLS if there is a context; the base URL for them (port 0: any free one)."""
        return await self._endpoint.start(host, port, ssl_context)

    async def stop(self) -> None:
        """Answer the open polls with what they are to do now, and close."""
        self._closing = True
        self._silence.close()
        self._polls.answer_all()
        await self._endpoint.stop()

    async def serve(self, token: str, body: bytes) -> Answer:
        """One request whose body is here already, until it is answered."""

        async def read() -> bytes:
            return body

        answer = await self.answer(token, read)
        if isinstance(answer, Answer):
            return answer
        over: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.then(lambda said: None if over.done() else over.set_result(said))
        try:
            return await over
        finally:
            answer.hang_up()

    async def answer(self, token: str, read: Read, known: Known = lambda who: None) -> Answer | Held:
        """One request: authenticate, read, parse, sync. Everything but the socket, which hears by `known` that the
        token is good. Nothing of the body is read before that: anybody may send one. Raises what `read` raises.
        """
        self.syncs += 1
        try:
            caller = await self._authenticate(token)
        except ClusterError:
            self._refused("token not checked")
            return refusal(
                503, "the operator cannot have tokens checked now: the API server does not answer it", TOKEN_RETRY_S
            )
        if caller is None:
            self._refused("wrong token")
            return refusal(
                401, "the bearer token is not accepted: it is expired, not of a pod, or not for this installation"
            )
        known(caller.pod_uid)
        if caller.key is not None and caller.pod_uid is not None:
            wait_s = self._limit.admit((caller.key, caller.pod_uid), self._clock.monotonic())
            if wait_s > 0.0:
                self._refused("too often")
                return refusal(429, f"pod {caller.namespace}/{caller.pod_name} asks too often", wait_s)
        try:
            asker = await self._taken(caller, read)
        except _Refused as error:
            self._refused(error.why)
            return refusal(error.status, str(error))
        return await self._poll(asker)

    async def _taken(self, caller: Caller, read: Read) -> Asker:
        """Read and take the report in; what is left of it while the poll is open. Raises _Refused."""
        try:
            report = parse_report(await read())
        except BadReport as error:
            raise _Refused(400, "malformed", str(error)) from None
        objection = caller.objection(report)
        if objection is not None:
            raise _Refused(403, "foreign pod", objection)
        try:
            self._take(report)
        except Outdated as error:
            raise _Refused(409, "outdated", str(error)) from None
        return report.asker()

    def _take(self, report: Report) -> None:
        """Take a report in, and ask for what it makes necessary. Raises Outdated."""
        news = self._roster.accept(report, self._clock.steady())
        was_asked = self._was_asked(report.key, report.pod_uid)
        if was_asked or (news is News.MATTERS and self._roster.tells_of_a_break(report)):
            self._hurry(report.key)
        elif news is News.MATTERS:
            self._enqueue(report.key, 0.0)
        if news is News.MATTERS:
            if self._roster.is_of_the_leader(report):
                self._recheck_soon(report.key)
            self._ask(report.key, self._roster.lost_peers(report))
            self._ask(report.key, self._roster.who_knows_progress(report))
        elif news is News.PROGRESS:
            self._show_progress(report.key)

    async def _poll(self, asker: Asker) -> Answer | Held:
        """Answer with the agent's instruction: at once if it has not acknowledged it, else when it changes, a newer
        report of the same pod comes, or the long poll is over."""
        poll = self._polls.open(asker)
        held = False
        try:
            if self._roster.is_unknown(asker):
                await self._look_for_owner(asker)
            held = not (asker.last or self._closing or poll.answered or self._roster.has_news_for(asker))
        finally:
            if not held:
                self._polls.close(poll)
        return poll if held else self._reply(asker)

    def _reply(self, asker: Asker) -> Answer:
        """What the agent is told now."""
        instruction = self._roster.instruction(asker)
        return Answer(200, dict(SyncReply(transition=self._transition, instruction=instruction, pace_s=self._pace_s())))

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _look_for_owner(self, asker: Asker) -> None:
        """An agent of a job that no turn has seen: gone, or not read yet? Only a fresh read of the cluster may say
        gone.
        """
        if self._clock.monotonic() < self._grace_ends:
            return
        try:
            uid = await self._owners.find(asker.key, asker.job_uid)
        except (ClusterError, TimeoutError):
            return  # silence of the API is no verdict
        if uid == asker.job_uid:
            self._enqueue(asker.key, 0.0)
        else:
            self._roster.mark_gone(asker.key, asker.job_uid)

    def _recheck(self, key: JobKey) -> None:
        """Answer those open polls whose instruction has changed."""
        self._rechecks.discard(key)
        self._polls.answer_those(key, self._roster.has_news_for)

    def _recheck_soon(self, key: JobKey) -> None:
        if key not in self._rechecks:
            self._rechecks.add(key)
            asyncio.get_running_loop().call_later(RECHECK_S, self._recheck, key)

    def _silence_due(self, key: JobKey, after: datetime) -> datetime | None:
        return self._roster.silence_due(key, after, self.listening_since)

    def _ask(self, key: JobKey, pod_uids: Iterable[str]) -> None:
        """Have agents speak: those whom a peer cannot reach, and rank 0's, which knows how far training came, when a
        rank of another breaks. An open poll is answered, and an agent that lives polls anew; that word takes a turn."""
        for uid in pod_uids:
            # Also of one between two polls, whose next word is on its way.
            self._asked.setdefault(key, set()).add(uid)
            self._polls.answer(key, uid)

    def _pace_s(self) -> float:
        """How often an agent is to tell of mere progress."""
        return min(max(PACE_LEAST_S, self._polls.jobs / PROGRESS_RATE), PACE_MOST_S)

    def _was_asked(self, key: JobKey, uid: str) -> bool:
        """Whether the pod's next word was waited for; from now on it is not."""
        asked = self._asked.get(key, set())
        if uid not in asked:
            return False
        asked.discard(uid)
        if not asked:
            del self._asked[key]
        return True

    def _refused(self, why: str) -> None:
        self.refusals[why] += 1

    def _health(self) -> Mapping[str, Any]:
        return {"ok": True, "polls": self.connected(), "refusals": dict(self.refusals)}
