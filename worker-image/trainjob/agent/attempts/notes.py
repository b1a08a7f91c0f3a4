"""Rank 0's agent in the join: the release notes of what the members hold. They tell hashes; each note comes from this
agent's own staging, or once from one member.

Made by `leader`. The note of a large checkpoint has thousands of files: from each of 512 members it would be gigabytes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Optional, Sequence

from trainjob.agent.attempts.join import Request, Staged, holders, staged
from trainjob.agent.background import within
from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.from_leader import AskNote, Chosen, Tell
from trainjob.agent.wire.from_member import NoteIs
from trainjob.agent.wire.packed import Held, Note, checked_note, note_sha, paths_of, unpack
from trainjob_api.typed import BadMessage

ANSWER_S = 5.0
"""For one member's answer; then the next is asked, and in the end the first once more."""
ROUNDS = 3


class Notes:
    """One join's."""

    def __init__(self, saving: Saving, tell: Tell) -> None:
        self._saving = saving
        self._tell = tell
        self._asked: Dict[str, asyncio.Future[bytes]] = {}
        self._shas: Dict[str, str] = {}
        self._notes: Dict[str, Note] = {}

    async def candidates(self, members: Sequence[Request]) -> List[Dict[str, Any]]:
        """What the members hold together, with the notes: {note, held: [path]}."""
        found: List[Dict[str, Any]] = []
        for one in staged(tuple(members)):
            note = await self._note(one)
            # Nobody shows it: who held it has gone, and with it the files.
            if note is not None:
                self._shas[one.held.id], self._notes[one.held.sha] = one.held.sha, note
                found.append({"note": note, "held": one.held.paths(note)})
        return found

    def sha(self, id_: str) -> str:
        """Of a candidate's note; empty for a checkpoint that no member holds."""
        return self._shas.get(id_, "")

    def holders(self, members: Sequence[Request], chosen: Optional[Chosen]) -> Dict[str, int]:
        """Addresses of the members that hold files of the chosen checkpoint, with their bits in its note."""
        sha = "" if chosen is None else self.sha(chosen.id)
        bits = holders(tuple(members), sha)
        if chosen is None or not bits or note_sha(chosen.note) == sha:
            return bits
        # It came from its manifest, which has the files in another order than the note that the members have.
        return {a: Held.of(chosen.note, paths_of(self._notes[sha], found)).bits for a, found in bits.items()}

    def came(self, word: NoteIs) -> None:
        """A member's answer."""
        waiting = self._asked.get(word.sha)
        if waiting is not None and not waiting.done():
            waiting.set_result(word.blob)

    async def _note(self, one: Staged) -> Optional[Note]:
        own = self._saving.shown_note(one.held.sha)
        if own is not None:
            return _checked(own, one)
        for index in one.members * ROUNDS:
            asked = self._asked[one.held.sha] = asyncio.get_running_loop().create_future()
            self._tell(index, AskNote(one.held.sha))
            try:
                note = _checked(await within(asked, ANSWER_S), one)
            except asyncio.TimeoutError:
                continue
            if note is not None:
                return note
        return None


def _checked(blob: bytes, one: Staged) -> Optional[Note]:
    """The note, if it is the one of that hash."""
    try:
        note = checked_note(unpack(blob)) if blob else None
    except BadMessage:
        return None
    return note if note is not None and note_sha(note) == one.held.sha else None
