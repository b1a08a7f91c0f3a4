"""This agent's steps in saving one report's checkpoint: stage what its ranks gave, compare copies, persist the release
note, and store the share once the report is released.

Called by `member`. Each step is done once, however often it is asked for over new connections; what was done is told
again.
"""

from __future__ import annotations

from typing import Any, Callable, Coroutine, Dict, Optional, Tuple, Type

from trainjob.agent.background import Background
from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.from_leader import Compare, Persist, Stage
from trainjob.agent.wire.from_member import Compared, FromMember, Persisted, Staged, StageFailed
from trainjob.agent.wire.packed import Note
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records import names
from trainjob_api import contract
from trainjob_api.rank_messages import Offer


class Steps:
    """One attempt's on one agent."""

    def __init__(self, saving: Saving, send: Callable[[FromMember], None], background: Background) -> None:
        self._saving = saving
        self._send = send
        self._background = background
        self._offers: Dict[Tuple[int, int], Offer] = {}
        self._states: Dict[Tuple[int, int], bytes] = {}
        """Of the report that is open, by (n, rank)."""
        self._staging: Dict[int, str] = {}
        """By call, the id under which its files are staged."""
        self._done: Dict[Tuple[int, Type[Any]], Optional[FromMember]] = {}
        """Steps that were asked for, with the answer once there is one."""
        self._notes: Dict[int, Note] = {}
        """Persisted, and not yet released."""

    def gave(self, n: int, rank: int, offer: Optional[Offer], state: bytes) -> None:
        """What a rank brings to report() n."""
        if offer is not None:
            self._offers[n, rank] = offer
        if state:
            self._states[n, rank] = state

    def take(self, step: Any) -> None:
        """Stage, Compare or Persist."""
        key = (step.n, type(step))
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
        self.upload(n)
        self._forget(n)

    def failed(self, n: int) -> None:
        """The ranks are refused. What is being stored already (SYNC) is released, whatever they are told."""
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
        if self._offers or self._states:
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
            answer = StageFailed(step.n, str(error))
        self._done[step.n, type(step)] = answer
        self._send(answer)

    async def _stage(self, step: Stage) -> FromMember:
        self._staging[step.n] = step.id
        offers = sorted((rank, offer) for (n, rank), offer in self._offers.items() if n == step.n)
        sources = [(rank, o.path, o.delete and o.mode != contract.UPLOAD_NONE) for rank, o in offers]
        states = {rank: state for (n, rank), state in self._states.items() if n == step.n}
        files, warnings = await self._saving.stage(step.id, sources, states)
        size = names.listing_size(path for found in files.values() for path, _ in found)
        if size > names.LISTING_LIMIT:
            return StageFailed(step.n, names.too_many(sum(map(len, files.values())), size))
        return Staged(step.n, {rank: tuple(found) for rank, found in files.items()}, tuple(warnings))

    async def _compare(self, step: Compare) -> FromMember:
        sums = {rank: await self._saving.checksums(step.id, wanted) for rank, wanted in step.paths.items()}
        return Compared(step.n, sums)

    async def _persist(self, step: Persist) -> FromMember:
        await self._saving.persist(step.note)
        self._notes[step.n] = step.note
        return Persisted(step.n)
