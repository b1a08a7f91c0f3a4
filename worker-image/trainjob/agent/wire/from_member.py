"""What a member says to rank 0's agent, as types. After a lost connection it says everything again: all of it may come
twice.
"""

from __future__ import annotations

from math import isfinite
from typing import Mapping, NamedTuple, Optional, Tuple, Union

from trainjob.agent.processes.vitals import Quiet
from trainjob.agent.wire import arrive
from trainjob.agent.wire.arrive import Arrive, Callers
from trainjob.agent.wire.packed import Held
from trainjob.agent.wire.pulse import BEAT, Beat
from trainjob_api.rank_messages import Log, Validated
from trainjob_api.recorded_calls import Call
from trainjob_api.typed import Packed, Vocabulary


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


class Ended(NamedTuple):
    """A rank process has ended (None: it has raised, and will end); in words: `how`."""

    rank: int
    kind: Optional[str]
    how: str
    communication: bool = False
    """Its exception speaks of a lost peer."""


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
    full: bool = False
    """For want of room."""


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
    place: str = ""
    """The node that they are on, or the pod."""
    quiet: Mapping[int, Quiet] = {}
    """Of those that were looked at before: whether they did anything since."""
    calls: Mapping[int, Tuple[Call, ...]] = {}
    """Their last collectives, of those that tell them."""


class PaceOf(NamedTuple):
    """What a rank says of its pace (`rank_messages.Paced`), and what the kernel adds (`pace.held.Shares`)."""

    steps: int
    step_s: float
    data_s: float
    work_s: float
    noise_s: float
    over: int
    by_loader: bool = False
    device: bool = False
    queued: float = 0.0
    stopped: float = 0.0
    disk: float = 0.0

    def check(self) -> None:
        """Raises ValueError."""
        if self.steps < 0 or self.over < 1 or not all(isfinite(each) and each >= 0 for each in self[1:5] + self[8:]):
            raise ValueError("a pace is made of times and shares")


class PacesAre(NamedTuple):
    """By rank."""

    paces: Mapping[int, PaceOf]
    place: str = ""
    """The node that they are on, or the pod."""


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
    Validated,
    Staged,
    StageFailed,
    Compared,
    Persisted,
    Shared,
    ShareLost,
    ShareFailing,
    Moved,
    StacksAre,
    PacesAre,
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
        "validated": Validated,
        "staged": Staged,
        "stage_failed": StageFailed,
        "compared": Compared,
        "persisted": Persisted,
        "shared": Shared,
        "share_lost": ShareLost,
        "share_failing": ShareFailing,
        "moved": Moved,
        "stacks_are": StacksAre,
        "paces_are": PacesAre,
        "damaged": FoundDamaged,
        "bye": Bye,
        BEAT: Beat,
    },
    arrays=(Callers, Call),
    packed={arrive.TAG: Packed(Arrive, arrive.packed, arrive.parsed)},
)
