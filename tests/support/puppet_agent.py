"""The agent of one pod in the simulator: says everything it knows, does what it is told.

It speaks the real protocol (`contract.AgentReport` as JSON bytes through the coordinator's `serve`). Real are the agents'
course, join, member and leader with all that belongs to them (barrier, saving, uploads, commits, the end of the run), and
the last word; made up are processes, connections (`puppet_group`), files and storage (`puppet_storage`), training
(`puppet_ranks`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.bare_site import bare_site
from support.puppet_group import Group, say_bye
from support.puppet_ranks import Ranks
from support.puppet_storage import Child, Inline
from trainjob.agent import finishing, observed
from trainjob.agent.attempts import awaited, beginning, course
from trainjob.agent.attempts.course import Course
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.attempts.member import Member
from trainjob.agent.barriers.effort import Effort
from trainjob.agent.control.look import look
from trainjob.agent.control.sync import QUIET_CHANGE_S
from trainjob.agent.draining import Drain
from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.from_leader import Joined
from trainjob.agent.wire.packed import Held
from trainjob.agent.work import STALL_S
from trainjob_api import contract, last_word
from trainjob_operator.agents.answers import Answer
from trainjob_operator.cluster import Manifest

if TYPE_CHECKING:
    from support.puppets import Training, World

STOP_S = 0.05
"""How long ranks take to die."""
RESTART_S = 1.5
"""From the end of a container to the agent of its next start."""
LOST_S = 1.0
"""A link to a peer that is not back after this is reported as lost."""
LONELY_S = 600.0
"""An agent without coordinator, ranks and uploads ends after this."""
IDLE_S, IDLE_LIMIT = 1.0, 5
"""Answers that come sooner than this were not held; so many in a row that say nothing new are an endless talk."""
DRAIN_S = 25.0
"""From SIGTERM to the end."""
DISK_S = (0.0, 0.05)
FORK_S = (0.0, 0.1)
"""What is brought before a fork."""

Post = Callable[[bytes], Awaitable[Answer]]
"""Raises ConnectionError when nobody listens, the request or the reply was lost."""


class PuppetAgent:
    """One life of it; its pod's disk outlives it."""

    def __init__(self, world: World, pod: Manifest, boot: int) -> None:
        self.world, self.pod, self.boot = world, pod, boot
        metadata = pod["metadata"]
        self.namespace, self.pod_name, self.pod_uid = metadata["namespace"], metadata["name"], metadata["uid"]
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        self.job, self.job_uid, self.slot = (
            env[contract.ENV_JOB],
            env[contract.ENV_JOB_UID],
            int(env[contract.ENV_SLOT]),
        )
        self.address = f"10.0.0.{self.slot}:7000"
        spec = json.loads(env[contract.ENV_AGENT_SPEC])
        self.processes = spec.pop("processes_per_worker")
        self.alive = True
        self.attempt = 0
        self.ranks: list[dict[str, Any]] = []
        self.course = Course()
        self.group: Group | None = None
        self.index = 0
        self.found = self.draining = self.muted = False
        self._told: dict[str, Any] = {}
        self.checked: int | None = None
        self.found_run: int | None = None
        self.found_shown: Mapping[str, Any] = {}
        self.shown: Mapping[str, Any] = {}
        self.lost_peers: set[int] = set()
        self.unreached_since = world.clock.monotonic()
        self.progress_at: tuple[int, float] = (-1, 0.0)
        self.slow: set[int] = set()
        """Local ranks that keep the others waiting."""
        self.clock_error = world.rng.uniform(-3.0, 3.0)
        self._seq = 0
        self._heard_at = world.clock.monotonic()
        self._transition = 0
        self._acknowledged: dict[str, Any] | None = None
        self._news = asyncio.Event()
        self.posts = 0
        self._said: dict[str, Any] = {}
        """In the last post that was answered."""
        self._idle_talk = 0
        """Posts in a row that said nothing new and were answered at once with nothing new."""
        self._due: asyncio.TimerHandle | None = None
        self._pace_s = QUIET_CHANGE_S
        self._last_post = 0.0
        self.gone = asyncio.Event()
        self.beginning = _Beginning(self)
        self.warning: str | None = None
        self.warm_at = world.clock.monotonic() + world.warms(self.pod_uid, boot)
        """What ranks are forks of is there."""
        # What of an agent is real.
        self.training = world.training(self.job)
        self.storage = Child(self.training.storage)
        staging: Any = world.disk(self.pod_uid)
        storage: Any = self.storage
        self.saving = _Saving(staging, storage, self._changed, self._fault, lambda name: Inline())
        self.saving.training = self.training
        self.site = bare_site(storage, self.saving, **{**spec, "storage": Child.storage})
        self.site.changed, self.site.on_fault, self.site.warn = self._changed, self._fault, self._warn
        self.site.progressed = lambda: self._post_by(self._pace_s)
        self.site.config.any_master_port, self.site.config.job_uid = False, self.job_uid
        self.site.return_file = "/nonexistent/returned"
        self.member: Member | None = None
        self.leader: Leader | None = None
        self.link: Any = None
        self.boundary: str | None = None
        self.held: tuple[Held, ...] = ()
        self.answer: Joined | None = None
        self._trainers = Ranks(self)

    # --- Speaking -----------------------------------------------------------------------------------------------------

    def speak(self) -> None:
        """Something changed: say it at once."""
        self._news.set()

    def _changed(self, urgent: bool) -> None:
        """As `Sync.changed`."""
        if urgent:
            self.speak()
        else:
            self._post_by(QUIET_CHANGE_S)

    def _post_by(self, rest_s: float) -> None:
        """So long after the post before; an earlier wish stands."""
        loop, due = asyncio.get_running_loop(), self._last_post + rest_s
        if self._due is not None:
            if self._due.when() <= due:
                return
            self._due.cancel()
        self._due = loop.call_at(max(due, loop.time()), self._news.set)

    def _warn(self, text: str | None) -> None:
        self.warning = text

    def _fault(self, error: BaseException) -> None:
        self.world.broken(error)

    async def run(self) -> None:
        """Sync until told to exit or killed."""
        asyncio.get_running_loop().call_at(self.warm_at, self.speak)
        while self.alive:
            self._news.clear()
            if self._due is not None:
                self._due.cancel()
            self._due, self._last_post = None, self.world.clock.monotonic()
            answer = asyncio.ensure_future(self._post())
            waits = [answer, asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self.gone.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits[1:]:
                    wait.cancel()
            if not self.alive:
                answer.cancel()
            elif answer.done() and (instruction := answer.result()) is not None:
                await self._instructed(instruction)
            # Else the open poll is left alone: the next report supersedes it.

    async def _post(self) -> dict[str, Any] | None:
        self._seq += 1
        self.posts += 1
        begun, said = self.world.clock.monotonic(), {**self.report(), "seq": 0, "clock": 0.0}
        seq = self._seq
        try:
            if self.muted:
                raise ConnectionError("no way to the coordinator")
            answer = await self.world.post(json.dumps(self.report()).encode())
            if self.muted:
                raise ConnectionError("no way from the coordinator")
        except ConnectionError:
            await asyncio.sleep(contract.SYNC_RETRY_S)
            if self.alive and self.is_idle and self.world.clock.monotonic() - self._heard_at > LONELY_S:
                self.end(contract.EXIT_OK if self.completed else contract.EXIT_NO_COORDINATOR, "no coordinator")
            return None
        self._heard_at = self.world.clock.monotonic()
        if answer.status == 409:
            return None
        assert answer.status == 200, f"agent of {self.pod_name} was refused: {answer}"
        if answer.body["transition"] < self._transition:
            return None
        self._transition, self._pace_s = answer.body["transition"], answer.body["pace_s"]
        instruction = dict(answer.body["instruction"])
        if seq == self._seq:
            self._listen(said, instruction, self.world.clock.monotonic() - begun)
        return instruction

    def _listen(self, said: dict[str, Any], instruction: dict[str, Any], held_s: float) -> None:
        """Two who tell each other at once what both know go on for ever."""
        is_idle = held_s < IDLE_S and said == self._said and instruction == said["acknowledged"]
        self._said, self._idle_talk = said, self._idle_talk + 1 if is_idle else 0
        if self._idle_talk > IDLE_LIMIT:
            text = (
                f"the coordinator answers {self.pod_name} at once, again and again, with what it knows: {instruction}"
            )
            self.world.broken(AssertionError(text))

    def report(self) -> dict[str, Any]:
        unreached = self._unreached
        since = min(unreached.values(), default=None)
        seen = SimpleNamespace(
            number=self.attempt,
            alive=not self.quiet,
            joined_at_leader=self.joined,
            ranks=[SimpleNamespace(report=lambda rank=rank: rank) for rank in self.ranks],
            lost_peers=sorted(unreached),
            unreached_s=0.0 if since is None else self.world.clock.monotonic() - since,
            run=1 if self.joined or self.completed else None,
            resumed_from=self.resumed_from,
            hang=None,
            leader=self.leader,
            beginning=self.beginning,
            shown=self.shown,
        )
        said: dict[str, Any] = {
            "namespace": self.namespace,
            "job": self.job,
            "job_uid": self.job_uid,
            "slot": self.slot,
            "pod": self.pod_name,
            "pod_uid": self.pod_uid,
            "boot": self.boot,
            "seq": self._seq,
            "clock": self.wall(),
            "address": self.address,
            "acknowledged": self._acknowledged,
            "draining": self.draining,
            "warming": self.world.clock.monotonic() < self.warm_at,
            "uploads": self.saving.waiting,
            "completed": self.completed,
            "checked": self.checked,
            "warning": self.warning,
            **observed.of_attempt(seen, self.found_run, self.found_shown),  # type: ignore[arg-type]
        }
        said["progress"] = self._progress(said["progress"])
        if self.leader is not None and not self.quiet:
            said["stragglers"] = self._stragglers()
        return said

    def _stragglers(self) -> dict[str, Any] | None:
        """Ranks that somebody made slow, as rank 0's agent finds them."""
        if self.group is None:
            return None
        members = self.group.members.items()
        slow = [index * self.processes + local for index, agent in members for local in getattr(agent, "slow", ())]
        if not slow:
            return None
        shares = {"behind": 0.5, "data": 0.0, "compute": 0.9, "held": 0.0, "wait": 0.1}
        ranks = [{"rank": rank, **shares} for rank in sorted(slow)]
        return {"since": self.wall(), "message": f"ranks {slow} keep the others waiting", "ranks": ranks}

    def _progress(self, told: dict[str, Any] | None) -> dict[str, Any] | None:
        """With the world's time: the library asks the machine for it."""
        if told is None:
            return None
        if self.progress_at[0] != told["position"]:
            self.progress_at = (told["position"], self.world.clock.now().timestamp())
        return {**told, "time": self.progress_at[1]}

    @property
    def joined(self) -> bool:
        return self.course.joined

    @property
    def completed(self) -> bool:
        return self.found or self.course.complete

    @property
    def is_complete(self) -> bool:
        """For `finishing`."""
        return self.course.complete

    @property
    def quiet(self) -> bool:
        return all(rank["state"] == contract.RANK_ENDED for rank in self.ranks)

    @property
    def is_idle(self) -> bool:
        """As `Work.is_idle`."""
        return self.quiet and not self.saving.waiting and not self._awaits_others

    @property
    def _awaits_others(self) -> bool:
        """As `Attempt.awaits_others`."""
        if self.completed:
            return False
        well = self.course.phase == course.RUNNING and all(rank["kind"] == contract.END_OK for rank in self.ranks)
        parted = awaited.parted(self._unreached, self.world.clock.monotonic())
        return well and 0 not in parted if self.leader is None else self.leader.awaits(parted, well)

    @property
    def _unreached(self) -> dict[int, float]:
        unreached = {} if self.leader is None else dict(self.leader.unreached)
        return {**unreached, **dict.fromkeys(self.lost_peers, self.unreached_since)}

    @property
    def resumed_from(self) -> str | None:
        chosen = None if self.answer is None else self.answer.resume.checkpoint
        return None if chosen is None else chosen.id

    def wall(self) -> float:
        return self.world.clock.now().timestamp() + self.clock_error

    # --- Doing --------------------------------------------------------------------------------------------------------

    async def _instructed(self, instruction: dict[str, Any]) -> None:
        changed = instruction != self._acknowledged
        self._acknowledged = instruction
        if instruction["do"] != contract.DO_WAIT:
            self._told = instruction
        if changed and (not self.draining or self._is_of_this_attempt(instruction)):
            await self._obey(instruction)

    def _is_of_this_attempt(self, instruction: dict[str, Any]) -> bool:
        """As `Work.keep_up`."""
        return instruction["do"] == contract.DO_RUN and instruction["attempt"] == self.attempt

    async def _obey(self, instruction: dict[str, Any]) -> None:
        """As `Work.follow`."""
        match instruction["do"]:
            case contract.DO_RUN:
                assert instruction["secret"]
                await self._begin(instruction["attempt"], instruction["index"], instruction["workers"])
                self.boundary = instruction.get("boundary")
                if self.leader is not None and instruction["attempt"] == self.attempt:
                    self.leader.want_boundary(self.boundary)
            case contract.DO_HOLD:
                await self._stop_ranks()
                if self.group is None:
                    self._background(self.saving.commit_what_is_left())
            case contract.DO_CHECK:
                await self._stop_ranks()
                self._background(self._look(instruction["attempt"]))
            case contract.DO_EXIT:
                await self._stop_ranks()
                self._background(self._leave(instruction["exit_code"], instruction.get("reason", "")))

    def _background(self, work: Awaitable[None]) -> None:
        """As long as this agent lives."""

        async def until_gone() -> None:
            doing = asyncio.ensure_future(work)
            gone = asyncio.ensure_future(self.gone.wait())
            await asyncio.wait([doing, gone], return_when=asyncio.FIRST_COMPLETED)
            for task in (doing, gone):
                task.cancel()
            if doing.done() and not doing.cancelled():
                doing.result()

        self.world.spawn(until_gone())

    async def _look(self, attempt: int) -> None:
        storage: Any = self.storage
        own: Any = None if self.group is None else self
        await finishing.settle(own, self.saving, STALL_S)
        found = await look(storage, self.job_uid, lambda text: None)
        self.found, self.checked, self.found_run = self.found or found.completed, attempt, found.run
        self.found_shown = found.shown
        self.speak()

    async def _leave(self, exit_code: int, why: str) -> None:
        """As long as bytes move, what was acknowledged is stored first."""
        attempt: Any = None if self.group is None else self
        await finishing.while_it_moves(
            finishing.finish(attempt, self.saving), lambda: finishing.moved(attempt, self.saving), STALL_S
        )
        self.end(exit_code, why)

    async def finish(self) -> None:
        """As `Attempt.finish`."""
        if self.member is not None:
            await self.member.hand_in()
        await self.saving.finished()
        if self.leader is not None:
            await self.leader.finish()

    async def _begin(self, attempt: int, index: int, workers: int) -> None:
        """As `Work._run_attempt`."""
        if attempt < self.attempt or (attempt == self.attempt and not self.course.unused):
            return
        await self._stop_ranks()
        if not self.alive or self.draining:
            return
        self._close_attempt()
        self.boundary = None
        self.attempt, self.index, self.ranks, self.course, self.answer = attempt, index, [], Course(), None
        self.beginning = _Beginning(self)
        self.beginning.note(beginning.STOPPED)
        self.lost_peers.clear()
        self.group = self.world.group(self, attempt, workers)
        self.member = Member(self.site, _Duties(self), self._to_leader)  # type: ignore[arg-type]
        self.member.server = self._trainers  # type: ignore[assignment]
        self.speak()
        self.carry_out(self.course.begun(attempt <= self.world.notes.get(self.pod_uid, 0)))

    def _close_attempt(self) -> None:
        """As `Attempt.close`."""
        self._trainers.stop()
        say_bye(self)
        for part in (self.leader, self.member):
            if part is not None:
                part.close()
        self.leader = self.member = None
        self.saving.to_leader = lambda word: None

    def _to_leader(self, word: Any) -> None:
        if self.group is not None:
            self.group.send(self, word)

    def carry_out(self, outputs: Iterable[course.Output]) -> None:
        """What the course asks for."""
        for output in outputs:
            if isinstance(output, course.Ask):
                self.world.spawn(self._ask(self.attempt))
            elif isinstance(output, course.Start):
                self.world.spawn(self._start(self.attempt))
            elif isinstance(output, course.EndUnstarted):
                self.ranks = [self._rank(local) for local in range(self.processes)]
                self._end_running(output.kind)
            elif isinstance(output, course.EndRanks):
                self._end_running(output.kind)
        self.speak()

    async def _ask(self, attempt: int) -> None:
        held = await self.saving.shown()
        assert (self.group is not None and self.member is not None) or not self.alive
        if self.attempt != attempt or self.course.phase != course.ASKING or not self.alive:
            return
        assert self.group is not None and self.member is not None
        self.held = held
        self.saving.to_leader = self._to_leader
        if self.index == 0:
            self.leader = Leader(self.site, attempt, self.group.workers, self.processes, self.member.take)
            self.leader.hangs_after(0)  # trainers of this kind stand nowhere
            self.leader.want_boundary(self.boundary)
            self.leader.reached = self._told.get("reached")
        self.group.come(self, self.index)

    async def _start(self, attempt: int) -> None:
        """The join is answered: its ranks are forked, unless something came between."""
        assert self.answer is not None and self.group is not None
        await self.saving.adopt(self.answer.resume.adopt, self.resumed_from)
        await asyncio.sleep(self.world.between(FORK_S))
        if not self.alive or self.attempt != attempt or self.course.phase != course.STARTING:
            return
        self.course.forking()
        self.beginning.note(beginning.FORKED)
        self.world.notes[self.pod_uid] = attempt
        self.world.starts.append((self.job_uid, attempt, self.index, self.pod_uid))
        self.ranks = [self._rank(local) for local in range(self.processes)]
        self._trainers.start(self.answer)
        self.speak()

    # --- What a member's attempt is asked (`_Duties`) -----------------------------------------------------------

    def joined_with(self, answer: Joined) -> None:
        if self.course.phase != course.ASKING:
            return
        self.answer, self.shown = answer, last_word.shown_of(answer.shown)
        self.beginning.note(beginning.JOINED)
        self._trainers.check_choice(answer)
        self.carry_out(self.course.answered(answer.completed))

    def refused(self, kind: str, message: str) -> None:
        if kind == contract.END_STORAGE:
            self.world.incidents += 1
        self.carry_out(self.course.failed(kind, message))

    def damaged(self, id_: str, why: str) -> None:
        raise AssertionError(f"checkpoint {id_} is taken for damaged: {why}")

    def storage_unusable(self, message: str) -> None:
        self.refused(contract.END_STORAGE, message)

    def unstored(self, message: str) -> None:
        self._overrule(contract.END_STORAGE, message, range(len(self.ranks)))

    def needed(self, numbers: Sequence[int], message: str) -> None:
        first = self.index * self.processes
        self._overrule(contract.END_EARLY, message, [number - first for number in numbers])

    def completed_now(self, shown: Mapping[str, Any] | None) -> None:
        self.shown = last_word.shown_of(shown)
        self.course.completed()
        self._trainers.check_end()
        self.speak()

    def _overrule(self, kind: str, message: str, locals_: Iterable[int]) -> None:
        for local in locals_:
            if self.ranks[local].get("kind") == contract.END_OK:
                self.ranks[local] = {**self.ranks[local], "kind": kind, "error": {"type": kind, "message": message}}
        self.speak()

    # --- Ranks --------------------------------------------------------------------------------------------------------

    async def _stop_ranks(self) -> None:
        self.course.stopped()
        if not self.quiet:
            await asyncio.sleep(STOP_S)
            self._end_running(contract.END_STOPPED)
        self.saving.cancel_staging()

    def _end_running(self, kind: str) -> None:
        for local, rank in enumerate(self.ranks):
            if rank["state"] != contract.RANK_ENDED:
                rank.update(state=contract.RANK_ENDED, kind=kind, signal=9, ended_at=self.wall())
                self._ended(local)

    def _rank(self, local: int) -> dict[str, Any]:
        rank = self.index * self.processes + local
        return {"rank": rank, "local_rank": local, "pid": 100 * self.attempt + rank, "state": contract.RANK_RUNNING}

    def end_rank(self, local: int, kind: str, *, exit_code: int, error: dict[str, Any] | None = None) -> None:
        self.ranks[local] = {
            **self.ranks[local],
            "state": contract.RANK_ENDED,
            "kind": kind,
            "exit_code": exit_code,
            "ended_at": self.wall(),
            "error": error,
        }
        self._ended(local)
        self.speak()

    def _ended(self, local: int) -> None:
        self._trainers.ended(local)
        if self.member is not None:
            report = self.ranks[local]
            rank: Any = SimpleNamespace(rank=report["rank"], report=lambda: report)
            self.member.ended(rank)

    # --- The end ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """SIGTERM."""
        if not self.draining:
            self.draining = True
            self.speak()
            self._background(self._drained())

    async def _train_on(self) -> None:
        """As `Agent._train_on`."""
        drain = Drain(self.attempt, self.world.clock.monotonic())
        while True:
            training = None if self.quiet else self.attempt
            if drain.trains_until(training, self._acknowledged or {}, self.world.clock.monotonic()) is None:
                return
            await asyncio.sleep(0.05)

    async def _drained(self) -> None:
        await self._train_on()
        await self._stop_ranks()
        self.speak()
        await asyncio.sleep(STOP_S)
        attempt: Any = None if self.group is None else self
        finishing_ = asyncio.ensure_future(finishing.finish(attempt, self.saving))
        try:
            await asyncio.wait([finishing_], timeout=DRAIN_S)
        finally:
            finishing_.cancel()
        code = contract.EXIT_OK if self.completed else contract.EXIT_REMOVED
        if self._told.get("do") == contract.DO_EXIT:
            code = self._told["exit_code"]
        self.end(code, "its pod was told to end (SIGTERM)")

    def end(self, code: int, why: str) -> None:
        """By itself."""
        if self.alive:
            self.die(goes_well=True)
            self.world.finished(self, code, why)

    def die(self, *, silently: bool = False, goes_well: bool = False) -> None:
        """The process is gone; `silently`: with its machine, so that no peer hears of it."""
        if not self.alive:
            return
        last = self.leader
        if goes_well:
            say_bye(self)
        self.alive = False
        self.gone.set()
        self._trainers.stop()
        if self.link is not None:
            self.link.freeze() if silently else self.link.close()
        if silently and self.group is not None and last is not None:
            for other in self.group.members.values():
                if other.link is not None:
                    other.link.freeze()
        if self.member is not None:
            self.member.close()
        if last is not None:
            last.close()
        self.saving.close()
        if self.world.agents.get(self.pod_uid) is self:
            del self.world.agents[self.pod_uid]


class _Saving(Saving):
    """Its disk takes time, and it is known what it was told to drop."""

    training: Training

    async def persist(self, note: Any) -> None:
        await asyncio.sleep(self.training.storage.rng.uniform(*DISK_S))
        await super().persist(note)

    async def dropped(self, id_: str) -> None:
        self.training.dropped.add(id_)
        await super().dropped(id_)


class _Beginning:
    """As `Beginning`, by the world's time."""

    def __init__(self, agent: PuppetAgent) -> None:
        self._now, self._told = agent.world.clock.monotonic, agent.world.clock.monotonic()
        self._at: dict[str, Any] = {"told": round(agent.wall(), 3)}

    def note(self, part: str) -> None:
        self._at.setdefault(part, round((self._now() - self._told) * 1000))

    def report(self) -> dict[str, Any]:
        return dict(self._at)

    def effort(self, effort: Effort) -> dict[str, Any]:
        now, saved = self._now(), effort.saved_at
        return {
            "saved": None if saved is None else max(0, round((saved - self._told) * 1000)),
            "checkpoint": round(effort.checkpoint_s(now) * 1000),
            "stalled": round(effort.stalled_s(now) * 1000),
            "idle": round(effort.idle_s(now) * 1000),
        }


class _Duties:
    """What `Attempt` does for its member."""

    restore = None

    def __init__(self, agent: PuppetAgent) -> None:
        self._agent = agent
        self.joined, self.refused, self.damaged = agent.joined_with, agent.refused, agent.damaged
        self.storage_unusable, self.unstored, self.needed = agent.storage_unusable, agent.unstored, agent.needed
        self.completed = agent.completed_now

    def broke(self, number: int) -> None:
        """It goes to the logs of the ranks here."""

    @property
    def ranks(self) -> list[Any]:
        return [SimpleNamespace(rank=rank["rank"], output=None) for rank in self._agent.ranks]

    def process_of(self, number: int) -> Any:
        report = next(rank for rank in self._agent.ranks if rank["rank"] == number)
        return SimpleNamespace(state=report["state"], report=lambda: report, refuse=lambda why: None)
