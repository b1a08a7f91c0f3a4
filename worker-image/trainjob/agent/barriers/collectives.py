"""Rank 0's agent: serves report(), barrier() and broadcast_from_rank_zero() of the attempt. The rules are `barrier`,
which is pure; this carries them out. What a report() saves and shows is `reports`.

Made by `leader` when the join is answered. On the way of every report(): nothing here logs, waits or touches a disk
unless a checkpoint came with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple

from trainjob.agent import rank_places
from trainjob.agent.barriers import barrier
from trainjob.agent.barriers.barrier import Barrier
from trainjob.agent.barriers.boundary import HOLD_S, Boundary
from trainjob.agent.barriers.calls import Arrival
from trainjob.agent.barriers.effort import Effort
from trainjob.agent.barriers.history import History
from trainjob.agent.barriers.missing import Missing
from trainjob.agent.barriers.reports import Facts, Reports, TellEach
from trainjob.agent.committing.commits import Commits
from trainjob.agent.hangs.asked import Asked
from trainjob.agent.hangs.inquiry import Inquiry
from trainjob.agent.hangs.watch import Watch
from trainjob.agent.pace.watch import Watch as PaceWatch
from trainjob.agent.site import Site
from trainjob.agent.wire import from_leader
from trainjob.agent.wire.arrive import Arrive
from trainjob.agent.wire.from_leader import Needed
from trainjob.agent.wire.from_member import Compared, Staged, StageFailed
from trainjob_api import contract
from trainjob_api.rank_messages import LogRow, Preemption, Saved


class Collectives:
    """One per attempt."""

    def __init__(self, site: Site, tell: TellEach, facts: Facts, commits: Commits, history: History) -> None:
        self._site = site
        self._tell = tell
        self._facts = facts
        self._commits = commits
        self._reports = Reports(site, tell, facts, commits, history)
        self._loop = asyncio.get_running_loop()
        self.effort = Effort()
        self._barrier = Barrier(facts.workers * facts.processes, range(facts.workers), site.config.barrier_warn_s)
        self._outputs: Deque[barrier.Output] = deque()
        self._busy = False
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = 0.0
        self._blob = b""
        self._answered = 0
        self._answer_blob = b""
        self._answer_requests = False
        self._answer_preemption: Optional[Preemption] = None
        self.preemption: Optional[Preemption] = None
        """Workers are to go, as the coordinator says."""
        self._boundary = Boundary()
        self._kept: Optional[from_leader.Release] = None
        """The answer that ranks would have by now, had they not reached a boundary."""
        self._keeping: Optional[asyncio.TimerHandle] = None
        self.needed: Dict[int, Needed] = {}
        """By worker, what it is told of ranks that ended although others waited for them: the attempt is no success."""
        self._over = False
        """A rank has ended: what the others wait for is known."""
        self.inquiry = Inquiry(self._tell_one)
        self._missing = Missing(self._tell_one, self.inquiry, site.on_fault)
        self.hangs = Watch(self.inquiry, self._is_excused, self.effort.checkpoint_s, site.on_fault)
        self.hangs.ranks = self._ranks_there
        self.pace = PaceWatch(self._ranks_there, lambda: site.changed(True))
        self.asked = Asked(self.inquiry, self._ranks_there, lambda: site.changed(True), site.on_fault)
        self.hangs.served = lambda: self._barrier.phase != barrier.ARRIVING
        self.hangs.changed = lambda: site.changed(True)
        self.unreached: Callable[[], bool] = lambda: False
        """Whether some member cannot be reached."""

    @property
    def attempt(self) -> int:
        """Its number."""
        return self._facts.attempt

    @property
    def progress(self) -> contract.ProgressReport:
        """How far the run is."""
        return self._reports.progress

    @property
    def boundary(self) -> Optional[str]:
        """The wish for whose sake all ranks are kept in report() now, behind a saved checkpoint."""
        return self._boundary.reached

    def close(self) -> None:
        """The attempt is over."""
        for timer in (self._timer, self._keeping):
            if timer is not None:
                timer.cancel()
        self._missing.close()
        self.hangs.close()
        self.asked.close()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def arrived(self, index: int, message: Arrive) -> None:
        """Ranks of an agent have called a collective. Raises ValueError for ranks that are not its own."""
        facts = self._facts
        if not facts.plain:
            self._resize(message.world_size or 0)
        first_of_all = False
        for callers in message.callers:
            ranks = callers.ranks
            if facts.plain and not min(ranks) // facts.processes == index == max(ranks) // facts.processes:
                raise ValueError(f"not all of ranks {ranks} are ranks of worker {index}")
            first_of_all = first_of_all or ranks[0] == 0
        if message.n > self._answered:
            # Not of a call that is only repeated after a lost connection.
            if first_of_all or message.row is not None:
                self._reports.gave_row(message.row or {})
                self._blob = message.blob
            if message.metadata:
                self._reports.gave(message.metadata)
            if message.wanted:
                self._reports.gave_metrics(message.wanted)
        now = self._loop.time()
        for ranks, timeout_s, mode, stop, step in message.callers:
            arrival = Arrival(ranks[0], message.n, message.kind, timeout_s, mode, stop, message.waited_s, step)
            self._carry_out(self._barrier.arrive_together(now, ranks, arrival))

    def ended(self, index: int, rank: int, how: str) -> None:
        """A rank process has ended; under a launcher all ranks below it."""
        self._over = True
        for one in self._ranks_below(index, rank):
            self._carry_out(self._barrier.ended(one, how))

    def stopped(self, index: int, rank: int, how: str) -> None:
        """The same of one that its agent was told to end."""
        self._over = True
        self._carry_out(self._barrier.stopped(self._loop.time(), self._ranks_below(index, rank), how))

    def staged(self, index: int, word: Staged) -> None:
        """An agent has staged its part."""
        if word.n == self._barrier.current and self._reports.staged(index, word):
            self._carry_out(self._barrier.staged(index, word.n))

    def stage_failed(self, index: int, word: StageFailed) -> None:
        """An agent cannot stage."""
        text = f"Worker {index} cannot stage the checkpoint: {word.message}"
        self._carry_out(self._barrier.stage_failed(index, word.n, text, full=word.full))

    def compared(self, index: int, word: Compared) -> None:
        """An agent has taken the checksums that were asked for."""
        n = self._barrier.current
        refusal = self._reports.compared(index, word) if word.n == n else None
        if refusal:
            self._carry_out(self._barrier.refused(n, refusal))
        elif refusal is not None:
            self._persist(barrier.Persist(n, tuple(range(self._facts.workers))))

    def persisted(self, index: int, n: int) -> None:
        """An agent has the release note on disk."""
        self._carry_out(self._barrier.persisted(index, n))

    def committed(self, id_: str) -> None:
        """A checkpoint is durable."""
        if self._reports.saves(id_):
            self._carry_out(self._barrier.committed(self._barrier.current))

    def commit_trouble(self, id_: str, why: str) -> None:
        """A checkpoint is not durable for now."""
        if self._reports.saves(id_):
            self._carry_out(self._barrier.commit_failed(self._barrier.current, why))

    def refuse_reports(self, why: str) -> None:
        """From now on every report() fails: the job is to fail because checkpoints cannot be stored."""
        self._carry_out(self._barrier.refuse_reports(why))

    def rejoined(self, index: int) -> None:
        """An agent's connection is new."""
        if index in self.needed:
            self._tell((index,), self.needed[index])
        if self._reports.handed_over:
            self._tell((index,), from_leader.Upload(self._barrier.current))
        self._carry_out(self._barrier.rejoined(index))

    def logged(self, rows: Sequence[LogRow]) -> None:
        """log() of rank 0."""
        self._reports.logged(rows)
        self.effort.stepped(self._loop.time())
        self.hangs.step()

    def want_boundary(self, token: Optional[str]) -> None:
        """A planned change waits for the next checkpoint (None: no more)."""
        if self._boundary.want(token):
            self._go_on()

    def _ranks_below(self, index: int, rank: int) -> Sequence[int]:
        return (rank,) if self._facts.plain else rank_places.ranks_of(index, self._ranks_each)

    def _ranks_there(self) -> Tuple[int, int]:
        return self._barrier.world_size, self._ranks_each

    def _is_excused(self) -> bool:
        return self._over or self._kept is not None or self.unreached()

    def _tell_one(self, index: Optional[int], word: from_leader.FromLeader) -> None:
        self._tell(None if index is None else (index,), word)

    def _resize(self, world_size: int) -> None:
        if world_size > 0 and world_size != self._barrier.world_size and self._barrier.current == 0:
            self._barrier.world_size = world_size

    # -- outputs -------------------------------------------------------------------------------------------------------

    def _carry_out(self, outputs: List[barrier.Output]) -> None:
        """In order, also what follows from them."""
        self._outputs.extend(outputs)
        if self._busy:
            return
        if self._outputs:
            self._busy = True
            try:
                while self._outputs:
                    self._do(self._outputs.popleft())
            finally:
                self._busy = False
        self._arm()

    def _do(self, output: barrier.Output) -> None:
        if isinstance(output, barrier.Release):
            self._release(output)
        elif isinstance(output, barrier.Fail):
            self._fail(output)
        elif isinstance(output, barrier.Admit):
            n = output.n
            self.effort.saving(self._loop.time())
            self._commits.admit(lambda: self._carry_out(self._barrier.admitted(n)))
        elif isinstance(output, barrier.Stage):
            self._reports.stage(output)
        elif isinstance(output, barrier.Persist):
            self._persist(output)
        elif isinstance(output, barrier.Commit):
            self._hand_over()
        else:
            self._missing.name(output, self._ranks_each, lambda: self._barrier.current)

    def _arm(self) -> None:
        """One timer for time-outs and warnings; it is left standing when it is early, so that a report() does not
        pay for it.
        """
        deadline = self._barrier.deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._barrier.tick(self._loop.time()))

    def _release(self, output: barrier.Release) -> None:
        saved: Optional[Saved] = None
        warnings: List[str] = []
        if output.ranks is None:
            self._answered, self._answer_blob = output.n, self._blob if output.kind == contract.KIND_BROADCAST else b""
            self._answer_requests = self._boundary.wanted is not None
            self._answer_preemption = self.preemption
            self.hangs.sign()
        elif self._kept is not None and self._kept.n == output.n:
            return  # a call that is repeated after a lost connection; its answer goes to all
        if output.ranks is None and output.kind == contract.KIND_REPORT:
            saved, warnings = self._reports.released()
            now = self._loop.time()
            self.effort.answered(now, saved is not None)
            self.effort.stepped(now)
            self.hangs.step()
        elif output.saved:
            saved = self._reports.saved_last()
        answer = from_leader.Release(
            output.n,
            output.stop,
            output.ranks,
            saved,
            tuple(warnings),
            self._answer_blob,
            self._answer_requests,
            self._answer_preemption,
        )
        saves = output.ranks is None and saved is not None and not output.stop
        if saves and self._boundary.wanted is not None and self._boundary.reach(self._loop.time()):
            self._kept, self._keeping = answer, self._loop.call_later(HOLD_S, self._go_on)
            self._tell(None, from_leader.Upload(output.n))
            self._site.changed(True)
            return
        self._tell(None, answer)

    def _go_on(self) -> None:
        """From a boundary that nobody uses."""
        answer, self._kept = self._kept, None
        if self._keeping is not None:
            self._keeping.cancel()
        if answer is not None:
            self._boundary.leave(self._loop.time())
            self._tell(None, answer)
            self._site.changed(True)

    def _fail(self, output: barrier.Fail) -> None:
        self._answered = max(self._answered, output.n)
        self._reports.failed()
        self.effort.answered(self._loop.time(), saved=False)
        if output.reason == contract.FAIL_RANK_GONE:
            # Before the refused are told: theirs are the ends that follow.
            self._note_needed(output)
        self._tell(None, from_leader.Fail(*output))

    def _note_needed(self, output: barrier.Fail) -> None:
        for index, ranks in rank_places.by_worker(output.about, self._ranks_each).items():
            if index not in self.needed:
                self.needed[index] = Needed(ranks, output.message)
                self._tell((index,), self.needed[index])

    @property
    def _ranks_each(self) -> int:
        return max(1, self._barrier.world_size // self._facts.workers)

    def _persist(self, output: barrier.Persist) -> None:
        refusal = self._reports.persist(output, self._barrier.world_size)
        if refusal is not None:
            self._carry_out(self._barrier.refused(output.n, refusal))

    def _hand_over(self) -> None:
        n = self._barrier.current
        self._reports.hand_over(n)
        if self._site.storage is None:
            self._carry_out(self._barrier.committed(n))
