"""What rank 0's agent says to the members, as types; to itself, which is a member too, by a plain call. All of it may
come twice.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from trainjob.agent.wire.packed import Note, bits_of_text, bits_to_text, checked_note, pack, paths_of, unpack
from trainjob.agent.wire.pulse import BEAT, Beat
from trainjob_api.rank_messages import Preemption, Saved
from trainjob_api.typed import BadMessage, Blob, Object, Vocabulary


class Chosen(NamedTuple):
    """The checkpoint that the attempt resumes from."""

    id: str
    source: str
    """staged | stored"""
    uri: Optional[str]
    note: Note
    stored: Tuple[str, ...] = ()
    """Of a staged one: the paths that storage has already."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Chosen:
        """From the object that agents and the storage child send. Raises BadMessage."""
        id_, source, uri, stored = (found.get(name) for name in ("id", "source", "uri", "stored"))
        if not isinstance(id_, str) or source not in ("staged", "stored") or not isinstance(uri, (str, type(None))):
            raise BadMessage("a chosen checkpoint needs its id, source and uri")
        return cls(id_, str(source), uri, checked_note(found.get("note")), tuple(map(str, stored or ())))


class Resume(NamedTuple):
    """What of the job's checkpoints matters to an attempt."""

    checkpoint: Optional[Chosen]
    """None: it starts from nothing."""
    holders: Mapping[str, int]
    """By address: bits of the files of the checkpoint that lie there staged."""
    adopt: Tuple[Note, ...]
    """Staged checkpoints that go on to storage with this attempt, oldest first."""

    def holder_paths(self) -> Dict[str, List[str]]:
        """The paths by address."""
        chosen = self.checkpoint
        return {} if chosen is None else {a: paths_of(chosen.note, bits) for a, bits in self.holders.items()}

    @classmethod
    def parse(cls, blob: bytes) -> Resume:
        """Raises BadMessage."""
        found = unpack(blob)
        try:
            chosen, holders, adopt = found["checkpoint"], found["holders"], found["adopt"]
            return cls(
                None if chosen is None else Chosen.of(chosen),
                {str(address): bits_of_text(bits) for address, bits in holders.items()},
                tuple([checked_note(note) for note in adopt]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadMessage(f"what it packs is no answer of a join: {type(error).__name__}") from None

    def packed(self) -> bytes:
        """As it is sent."""
        chosen = self.checkpoint
        return pack(
            {
                "checkpoint": None if chosen is None else chosen._asdict(),
                "holders": {address: bits_to_text(bits) for address, bits in self.holders.items()},
                "adopt": list(self.adopt),
            }
        )


class Joined(NamedTuple):
    """The join's answer: how the attempt begins."""

    run: int
    completed: bool
    members: Tuple[str, ...]
    """Addresses of the attempt's agents, by index."""
    master_addr: str
    master_port: int
    claim: Optional[Object]
    """{run, nonce}: what rank 0's agent wrote to the storage path; None: there is nothing to be seen."""
    resume: Resume
    hosted: bool = False
    """Torch's store is served at that address already, by a process beside rank 0."""
    shown: Optional[Object] = None
    """Of a complete run (`last_word.SHOWN`)."""


class AskNote(NamedTuple):
    """Send the release note of that hash."""

    sha: str


class Refused(NamedTuple):
    """The attempt cannot begin, or must not go on."""

    kind: str
    message: str


class Stage(NamedTuple):
    """Stage what your ranks gave to call n."""

    n: int
    id: str


class Compare(NamedTuple):
    """Send the checksums of these staged files, by rank (strict)."""

    n: int
    id: str
    paths: Mapping[int, Tuple[str, ...]]


class Persist(NamedTuple):
    """Write the release note of call n to your disk."""

    n: int
    note: Note


class Upload(NamedTuple):
    """Store your share of the checkpoint of this call although its ranks still wait (SYNC)."""

    n: int


class Release(NamedTuple):
    """Call n is complete: answer these ranks (None: all). The blob of a broadcast."""

    n: int
    stop: bool
    ranks: Optional[Tuple[int, ...]] = None
    checkpoint: Optional[Saved] = None
    warnings: Tuple[str, ...] = ()
    blob: bytes = b""
    requested: bool = False
    """A planned change waits for the next checkpoint."""
    preemption: Optional[Preemption] = None
    """Of what is requested: workers are to go."""


class Fail(NamedTuple):
    """Call n has failed for these ranks; `about` are to blame."""

    n: int
    ranks: Tuple[int, ...]
    reason: str
    message: str
    about: Tuple[int, ...]


class Missing(NamedTuple):
    """What is to be said to the ranks that wait."""

    ranks: Tuple[int, ...]
    text: str


class Stacks(NamedTuple):
    """Where do these ranks stand?"""

    request: int
    ranks: Tuple[int, ...]


class ReportedTo(NamedTuple):
    """The run's checkpoints ({id, path, metrics}), for a rank that asked; or why they cannot be listed."""

    rank: int
    checkpoints: Tuple[Object, ...]
    error: Optional[str] = None


class Committed(NamedTuple):
    """The manifest of a checkpoint is on storage."""

    id: str


class Drop(NamedTuple):
    """A checkpoint is not stored: forget it."""

    id: str
    why: str


class ShareAgain(NamedTuple):
    """Storage does not show your share."""

    id: str


class Damaged(NamedTuple):
    """The checkpoint that was resumed is damaged; the attempt ends."""

    id: str
    why: str


class Unstored(NamedTuple):
    """All ranks ended well, but a checkpoint cannot be stored and the job is to fail for that; to rank 0's member
    alone.
    """

    message: str


class Needed(NamedTuple):
    """Others were refused a call because these ranks have ended; an end with 0 is no success then."""

    ranks: Tuple[int, ...]
    message: str


class Broke(NamedTuple):
    """A rank broke, and not because it lost another; or it ended well, and all others lost it."""

    rank: int


class Completed(NamedTuple):
    """The run's end record is written."""

    shown: Optional[Object] = None
    """What rank 0's agent tells of the run (`last_word.SHOWN`), should nobody hear it any more."""


FromLeader = Union[
    Joined,
    AskNote,
    Refused,
    Stage,
    Compare,
    Persist,
    Upload,
    Release,
    Fail,
    Missing,
    Stacks,
    ReportedTo,
    Committed,
    Drop,
    ShareAgain,
    Damaged,
    Unstored,
    Needed,
    Broke,
    Completed,
    Beat,
]
Tell = Callable[[Optional[int], FromLeader], None]
"""To one member, by its index; None: to all."""
FROM_LEADER: Vocabulary[FromLeader] = Vocabulary(
    {
        "joined": Joined,
        "note": AskNote,
        "refused": Refused,
        "stage": Stage,
        "compare": Compare,
        "persist": Persist,
        "upload": Upload,
        "release": Release,
        "fail": Fail,
        "missing": Missing,
        "stacks": Stacks,
        "reported_are": ReportedTo,
        "committed": Committed,
        "drop": Drop,
        "share": ShareAgain,
        "damaged": Damaged,
        "unstored": Unstored,
        "needed": Needed,
        "broke": Broke,
        "completed": Completed,
        BEAT: Beat,
    },
    blobs={
        Joined: Blob("resume", Resume.parse, Resume.packed),
        Persist: Blob("note", lambda blob: checked_note(unpack(blob)), pack),
    },
)
