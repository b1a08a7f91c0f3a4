"""How the members of an attempt come together, as a pure state machine of rank 0's agent.

`leader` feeds it and carries out the outputs: when all members have asked to join, the run, the checkpoint and the
master port are settled once, and every member gets that one answer; also one that asks again after a lost connection.
Nothing here waits for ever: the wait ends with the last member, or with a newer instruction, which throws this object
away.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from trainjob.agent.wire.from_leader import Joined
from trainjob.agent.wire.packed import Held
from trainjob_api import contract


class Request(NamedTuple):
    """A member (its index) wants to join; its older ranks are reaped."""

    member: int
    address: str
    held: Tuple[Held, ...] = ()
    """Staged checkpoints, newest first."""


class Settle(NamedTuple):
    """All are here: settle run and checkpoint among these members."""

    members: Tuple[Request, ...]


class Answer(NamedTuple):
    """Tell these members how the attempt begins."""

    indices: Tuple[int, ...]
    answer: Joined


class Refuse(NamedTuple):
    """Tell these members that it cannot begin."""

    indices: Tuple[int, ...]
    kind: str
    message: str


Output = Union[Settle, Answer, Refuse]

GATHERING = "gathering"
SETTLING = "settling"
ANSWERED = "answered"
REFUSED = "refused"
FORGOTTEN = (
    "The agent of rank 0 was started again after it had told others how the attempt begins; they have begun, and "
    "it does not know with what. The ranks start again."
)


class Join:
    """One attempt's join."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._members: Dict[int, Request] = {}
        self._answer: Optional[Joined] = None
        self._refusal: Tuple[str, str] = ("", "")
        self.phase = GATHERING

    def asked(self, request: Request) -> List[Output]:
        """A member asks (again). Raises ValueError for an index that the attempt does not have."""
        if not 0 <= request.member < self._workers:
            raise ValueError(f"index {request.member} of {self._workers} workers")
        self._members[request.member] = request
        if self.phase == ANSWERED and self._answer is not None:
            return [Answer((request.member,), self._answer)]
        if self.phase == REFUSED:
            return [Refuse((request.member,), *self._refusal)]
        if self.phase == GATHERING and not self.missing():
            self.phase = SETTLING
            return [Settle(tuple(self._members[i] for i in range(self._workers)))]
        return []

    def left(self, index: int) -> List[Output]:
        """A member's connection is gone. Before all are here it counts as not here; afterwards it may come back for
        the answer.
        """
        if self.phase == GATHERING:
            self._members.pop(index, None)
        return []

    def began(self) -> List[Output]:
        """A member comes back that was answered before. If not by this agent, the one that answered is gone with its
        container: that member asks no more, so this join would never be complete. Rank 0's agent says so, and the
        attempt is over.
        """
        if self.phase != GATHERING:
            return []
        self.phase, self._refusal = REFUSED, (contract.END_LOST, FORGOTTEN)
        return [Refuse((0,), *self._refusal)]

    def settled(self, answer: Joined) -> List[Output]:
        """Run, checkpoint and master port are known."""
        if self.phase != SETTLING:
            return []
        self.phase, self._answer = ANSWERED, answer
        return [Answer(tuple(sorted(self._members)), answer)]

    def failed(self, kind: str, message: str) -> List[Output]:
        """They could not be settled."""
        if self.phase != SETTLING:
            return []
        self.phase, self._refusal = REFUSED, (kind, message)
        return [Refuse(tuple(sorted(self._members)), kind, message)]

    def missing(self) -> Tuple[int, ...]:
        """Members that have not asked yet."""
        return tuple(i for i in range(self._workers) if i not in self._members)


class Staged(NamedTuple):
    """What the members hold together of a released checkpoint."""

    held: Held
    members: Tuple[int, ...]
    """Who can show its note."""


def staged(members: Tuple[Request, ...]) -> List[Staged]:
    """Each released checkpoint once, with all files that some member has; newest first as given."""
    merged: Dict[Tuple[str, str], Staged] = {}
    for member in members:
        for one in member.held:
            known = merged.get((one.id, one.sha))
            bits, indices = (0, ()) if known is None else (known.held.bits, known.members)
            merged[one.id, one.sha] = Staged(Held(one.id, one.sha, bits | one.bits), (*indices, member.member))
    return list(merged.values())


def holders(members: Tuple[Request, ...], sha: str) -> Dict[str, int]:
    """Addresses of the members that hold files of a checkpoint, with the bits of these."""
    return {m.address: one.bits for m in members for one in m.held if one.sha == sha and one.bits}
