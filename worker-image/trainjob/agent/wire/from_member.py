"""What a member says to rank 0's agent, as types. After a lost connection it says everything again: all of it may come
twice.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Tuple, Union

from trainjob.agent.wire.packed import Held
from trainjob.agent.wire.pulse import BEAT, Beat
from trainjob_api import contract
from trainjob_api.rank_messages import Log
from trainjob_api.typed import Object, Vocabulary


class Join(NamedTuple):
    """The first word over each new connection. `held`: staged checkpoints, newest first; `started`: the join's answer
    is known here, ranks run.
    """

    address: str
    held: Tuple[Held, ...] = ()
    started: bool = False


class NoteIs(NamedTuple):
    """A release note, packed, that was asked for by its hash; without a blob: it is not here."""

    sha: str
    blob: bytes = b""


class Callers(NamedTuple):
    """Ranks of one agent that have called alike, in ascending order."""

    ranks: Tuple[int, ...]
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoints that they bring; None: they bring none."""
    stop: bool = False
    step: Optional[int] = None
    """Of a report(): the one that they give."""

    def check(self) -> None:
        """Raises ValueError."""
        if not self.ranks or min(self.ranks) < 0:
            raise ValueError("callers without ranks")
        if self.mode not in (None, *contract.UPLOAD_MODES):
            raise ValueError(f"no upload mode: {self.mode!r:.40}")


class Arrive(NamedTuple):
    """Ranks of one agent wait in collective `n`: all of them in one message, unless one of them keeps the others
    waiting. The blob of a broadcast.
    """

    n: int
    kind: str
    callers: Tuple[Callers, ...]
    waited_s: float
    """How long the first of them has waited for the others here."""
    row: Optional[Object] = None
    """What rank 0 reported, if it is among them: {metrics, step, total_steps, epoch}."""
    metadata: Mapping[int, Object] = {}
    """Of the checkpoint of the lowest rank that brings one with metadata: no other counts."""
    world_size: Optional[int] = None
    """Under a launcher: as its ranks were told."""
    blob: bytes = b""
    wanted: Mapping[int, Object] = {}
    """The metrics of each rank that reports, where somebody follows those of all ranks."""

    def check(self) -> None:
        """Raises ValueError."""
        if self.kind not in contract.KINDS:
            raise ValueError(f"no collective: {self.kind!r:.40}")


class Ended(NamedTuple):
    """A rank process has ended (None: it has raised, and will end); in words: `how`."""

    rank: int
    kind: Optional[str]
    how: str


class Seen(NamedTuple):
    """Whether this member finds in the storage path what rank 0's agent wrote there."""

    pod: str
    seen: bool
    where: str


class AskReported(NamedTuple):
    """A rank asks for the run's checkpoints."""

    rank: int
    timeout_s: Optional[float] = None


class Staged(NamedTuple):
    """The (path, size) of what each rank here gave to the checkpoint of call n is staged."""

    n: int
    files: Mapping[int, Tuple[Tuple[str, int], ...]]
    warnings: Tuple[str, ...]


class StageFailed(NamedTuple):
    """A step of the save cannot be done here."""

    n: int
    message: str


class Compared(NamedTuple):
    """The checksums that were asked for: rank, path, checksum."""

    n: int
    sums: Mapping[int, Mapping[str, str]]


class Persisted(NamedTuple):
    """The release note is on disk."""

    n: int


class Shared(NamedTuple):
    """This agent's files of a checkpoint are on storage."""

    id: str


class ShareLost(NamedTuple):
    """This agent can never store its files of it."""

    id: str
    message: str


class ShareFailing(NamedTuple):
    """Storage refuses for now; it is tried again."""

    id: str
    kind: str
    message: str


class Moved(NamedTuple):
    """Bytes that this agent has stored so far."""

    bytes: int


class StacksAre(NamedTuple):
    """By rank."""

    request: int
    stacks: Mapping[int, str]


class FoundDamaged(NamedTuple):
    """The checkpoint that was resumed is damaged."""

    id: str
    why: str


class Bye(NamedTuple):
    """The connection closes in good order: this agent ends."""


FromMember = Union[
    Join,
    NoteIs,
    Arrive,
    Log,
    Ended,
    Seen,
    AskReported,
    Staged,
    StageFailed,
    Compared,
    Persisted,
    Shared,
    ShareLost,
    ShareFailing,
    Moved,
    StacksAre,
    FoundDamaged,
    Bye,
    Beat,
]
FROM_MEMBER: Vocabulary[FromMember] = Vocabulary(
    {
        "join": Join,
        "note_is": NoteIs,
        "arrive": Arrive,
        "log": Log,
        "ended": Ended,
        "seen": Seen,
        "reported": AskReported,
        "staged": Staged,
        "stage_failed": StageFailed,
        "compared": Compared,
        "persisted": Persisted,
        "shared": Shared,
        "share_lost": ShareLost,
        "share_failing": ShareFailing,
        "moved": Moved,
        "stacks_are": StacksAre,
        "damaged": FoundDamaged,
        "bye": Bye,
        BEAT: Beat,
    },
    arrays=(Callers,),
)
