"""This agent's steps in saving one report's checkpoint: stage what its ranks gave, compare copies, persist the release
note, and store the share once the report is released.

Called by `member`. Each step is done once, however often it is asked for over new connections; what was done is told
again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Callable, Coroutine, Dict, Optional, Set, Tuple, Type

from trainjob.agent.background import Background, within
from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.from_leader import Compare, Persist, Stage
from trainjob.agent.wire.from_member import Compared, FromMember, Persisted, Staged, StageFailed
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint.errors import CHANGED, FULL, LOST, StagingError
from trainjob.checkpoint.records import names
from trainjob_api import contract
from trainjob_api.rank_messages import AskState, Collective, Offer, State

STATE_S = 30.0
"""For a rank's state: it stands in report(), unless an exception has left that."""
LEFT_S = 1.0
"""A rank that leaves report() (sys.exit() in a signal handler, an exception) takes its temporary folder with it, and
ends a moment later. That end is the cause, and is told before what follows from it; so long it is waited for.
"""


class Steps:
    """One attempt's on one agent."""

    def __init__(
        self,
        saving: Saving,
        send: Callable[[FromMember], None],
        ask: Callable[[int, AskState], None],
        background: Background,
    ) -> None:
        """`send`: to rank 0's agent; `ask`: a rank."""
        self._saving = saving
        self._ask = ask
        self._with_state: Set[Tuple[int, int]] = set()
        """Ranks that have a state to give, by (n, rank)."""
        self._asked: Dict[Tuple[int, int], asyncio.Future[bytes]] = {}
        self._send = send
        self._background = background
        self._offers: Dict[Tuple[int, int], Offer] = {}
        self._states: Dict[Tuple[int, int], bytes] = {}
        """Of the report that is open, by (n, rank)."""
        self._staging: Dict[int, str] = {}
        """By call, the id under which its files are staged."""
        self._gone: Set[int] = set()
        self._one_is_gone = asyncio.Event()
        self._done: Dict[Tuple[int, Type[Any]], Optional[FromMember]] = {}
        """Steps that were asked for, with the answer once there is one."""
        self._notes: Dict[int, Note] = {}
        """Persisted, and not yet released."""
        self._over = 0
        """The last call that was answered or refused: a step of it that ends only now leaves nothing here."""

    def gave(self, rank: int, call: Collective) -> None:
        """What a rank brings to report()."""
        if call.checkpoint is not None:
            self._offers[call.n, rank] = call.checkpoint
        if call.blob:
            self._states[call.n, rank] = call.blob
        elif call.has_state:
            self._with_state.add((call.n, rank))

    def told_state(self, rank: int, state: State) -> None:
        """A rank's answer to `ask`."""
        asked = self._asked.get((state.n, rank))
        if asked is not None and not asked.done():
            if state.error is None:
                asked.set_result(state.blob)
            else:
                asked.set_exception(StagingError(LOST, f"The state of rank {rank} cannot be taken: {state.error}"))

    def ended(self, rank: int) -> None:
        """It gives nothing any more."""
        for (_, one), asked in self._asked.items():
            if one == rank and not asked.done():
                asked.set_exception(StagingError(LOST, f"Rank {rank} ended before it gave its state"))
        self._gone.add(rank)
        self._one_is_gone.set()

    def take(self, step: Any) -> None:
        """Stage, Compare or Persist."""
        key = (step.n, type(step))
        if step.n <= self._over:
            return
        if key not in self._done:
            self._done[key] = None
            self._background.spawn(self._do(step))
        else:
            answer = self._done[key]
            if answer is not None:
                self._send(answer)

    def upload(self, n: int) -> None:
        """Store the share of what was persisted for this call."""
        note = self._notes.pop(n, None)
        if note is not None:
            self._staging.pop(n, None)
            self._background.spawn(self._saving.released(note))

    def released(self, n: int) -> None:
        """The ranks are answered."""
        self._over = max(self._over, n)
        self.upload(n)
        self._forget(n)

    def failed(self, n: int) -> None:
        """The ranks are refused. What is being stored already (SYNC) is released, whatever they are told."""
        self._over = max(self._over, n)
        self._notes.pop(n, None)
        id_ = self._forget(n)
        if id_ is not None:
            self._background.spawn(self._saving.abandon(id_))

    async def hand_in(self) -> None:
        """This agent goes away: what it persisted is stored although its release has not come yet; rank 0's agent
        may release it any moment.
        """
        notes, self._notes = self._notes, {}
        for n in sorted(notes):
            self._staging.pop(n, None)
            await self._saving.released(notes[n])

    def _forget(self, n: int) -> Optional[str]:
        """Only of this call: an answer that is repeated for one rank may come while another waits in the next call
        already.
        """
        if self._offers or self._states or self._with_state:
            self._with_state = {key for key in self._with_state if key[0] > n}
            self._offers = {key: offer for key, offer in self._offers.items() if key[0] > n}
            self._states = {key: state for key, state in self._states.items() if key[0] > n}
        if self._done:
            self._done = {key: answer for key, answer in self._done.items() if key[0] > n}
        return self._staging.pop(n, None)

    async def _do(self, step: Any) -> None:
        works: Dict[Type[Any], Callable[[Any], Coroutine[Any, Any, FromMember]]] = {
            Stage: self._stage,
            Compare: self._compare,
            Persist: self._persist,
        }
        try:
            answer = await works[type(step)](step)
        except StagingError as error:
            if error.kind in (LOST, CHANGED):
                with suppress(asyncio.TimeoutError):
                    await within(self._one_is_gone.wait(), LEFT_S)
            answer = StageFailed(step.n, str(error), error.kind == FULL)
        if step.n > self._over:
            self._done[step.n, type(step)] = answer
        self._send(answer)

    async def _stage(self, step: Stage) -> FromMember:
        self._staging[step.n] = step.id
        offers = sorted((rank, offer) for (n, rank), offer in self._offers.items() if n == step.n)
        sources = [(rank, o.path, o.delete and o.mode != contract.UPLOAD_NONE) for rank, o in offers]
        states = {rank: state for (n, rank), state in self._states.items() if n == step.n}
        states.update(await self._asked_for(step.n))
        files, warnings = await self._saving.stage(step.id, sources, states)
        size = names.listing_size(path for found in files.values() for path, _ in found)
        if size > names.LISTING_LIMIT:
            return StageFailed(step.n, names.too_many(sum(map(len, files.values())), size))
        return Staged(step.n, {rank: tuple(found) for rank, found in files.items()}, tuple(warnings))

    async def _asked_for(self, n: int) -> Dict[int, bytes]:
        """The states of ranks here that brought no checkpoint to this report. Raises StagingError."""
        owing = sorted(rank for call, rank in self._with_state if call == n)
        gone = [rank for rank in owing if rank in self._gone]
        if gone:
            raise StagingError(LOST, f"Rank {gone[0]} ended before it gave its state")
        if not owing:
            return {}
        for rank in owing:
            self._asked[n, rank] = asyncio.get_running_loop().create_future()
            self._ask(rank, AskState(n))
        futures = [self._asked[n, rank] for rank in owing]
        try:
            await asyncio.wait(futures, timeout=STATE_S, return_when=asyncio.FIRST_EXCEPTION)
            for rank, asked in zip(owing, futures):
                if not asked.done():
                    raise StagingError(LOST, f"Rank {rank} did not give its state within {STATE_S:g} s")
                asked.result()
            return {rank: asked.result() for rank, asked in zip(owing, futures) if asked.result()}
        finally:
            for rank in owing:
                asked = self._asked.pop((n, rank))
                if asked.done():
                    asked.exception()  # one is enough to tell

    async def _compare(self, step: Compare) -> FromMember:
        sums = {rank: await self._saving.checksums(step.id, wanted) for rank, wanted in step.paths.items()}
        return Compared(step.n, sums)

    async def _persist(self, step: Persist) -> FromMember:
        await self._saving.persist(step.note)
        if step.n > self._over:
            self._notes[step.n] = step.note
        return Persisted(step.n)
