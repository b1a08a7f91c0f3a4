"""What an agent and its warm parent say to each other, and a launcher and one that is kept, as types.

Each message is one packet of a Unix socket pair (SOCK_SEQPACKET). The agent has one with the warm parent, and one with
each gate: a fork of the parent that waits for its order. What comes with a packet as descriptors is named below. An
order may be larger than a packet: it lies in a file of its own, of which the packet has the descriptor.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, NamedTuple, Tuple, Union

from trainjob_api.typed import BadMessage, Vocabulary

PACKET_LIMIT = 64 * 1024
TEXT_LIMIT = 2000
"""Characters of a reason."""
ENV_ROOM = "TRAINJOB_ROOM"
"""A variable of the parent's that its forks write their own variables over, where others read them
(/proc/<pid>/environ). No program sees it.
"""

# --- The agent to the parent ------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """The first word: what to import. `folder`: the script's; nothing that lies there is imported."""

    agent: int
    """Its pid, whose child each fork must be."""
    modules: Tuple[str, ...]
    folder: str
    optional: bool = False
    """What is not installed is left out without a word."""
    learned: str = ""
    """A file with a list of more modules, as JSON: what scripts had imported by their first step. They are imported
    while ranks train, slowly, and there is no word about those that cannot be. Empty: there is none.
    """
    without: Tuple[str, ...] = ()
    """Packages of the list that are left out."""
    tmp: str = ""
    """TMPDIR of the ranks, where modules that are imported put their caches; empty: as the environment has it."""
    first_to_go: bool = False
    """Where memory runs out the kernel ends one process: it and forks of it that wait, before any rank."""
    hurry: bool = False
    """What was learned is imported as fast as it can be: no rank trains here."""


class Fork(NamedTuple):
    """Make a gate; the packet has the gate's end of its socket pair."""


# --- The parent to the agent ------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """All is imported, and it may be forked."""

    modules: Tuple[str, ...]
    missing: Tuple[str, ...] = ()
    """Modules that were asked for and are not installed."""
    learned: str = ""
    """Which of the list had to be named, so that all of it is there: names of modules, as `module_names` has them."""


class Refused(NamedTuple):
    """There will be no forks: of this parent, or (a gate's own word) of this one. The parent ends."""

    why: str
    package: str = ""
    """Of the learned ones, which is to blame."""
    again: bool = False
    """Another that is made now would not say so."""


# --- A gate and the agent ---------------------------------------------------------------------------------------------


class Here(NamedTuple):
    """A gate is the agent's child and waits for its order."""

    pid: int


class Go(NamedTuple):
    """Become the rank that the order names. Descriptors: the file of the order, stdout and stderr in one."""


class Host(NamedTuple):
    """Become no rank: serve torch's store on this port until the agent closes the line."""

    port: int


class Hosts(NamedTuple):
    """It does."""


class Plain(NamedTuple):
    """It starts Python anew instead, in the same process."""

    why: str


class Order(NamedTuple):
    """What lies in the file of an order."""

    argv: Tuple[str, ...]
    """What a plain start would execute."""
    command: Tuple[str, ...]
    """What of it comes behind `--`: `script.py ...` or `-m module ...`."""
    environ: Mapping[str, str]
    front: Tuple[str, ...] = ()
    """Folders that the program itself puts in front of sys.path before it imports anything."""


# --- A launcher and a parent that is kept for the next job ------------------------------------------------------------


class Keep(NamedTuple):
    """What such a parent is started with, in a file."""

    id: str
    socket: str
    """Where it is reached; it removes that when it ends."""
    until: float
    """It ends by itself, by the clock that goes on while the machine sleeps (CLOCK_BOOTTIME)."""
    modules: Tuple[str, ...]
    folder: str
    """The script's: nothing of it is imported."""
    optional: bool
    learned: str = ""
    without: Tuple[str, ...] = ()
    tmp: str = ""
    """As in `Begin`."""
    owner: int = -1
    """A descriptor that it inherits: at the end of what can be read there it ends; -1: it belongs to nobody."""
    after_owner: Tuple[str, ...] = ()
    """What it then becomes: the program that takes away what its owner has left."""


class Take(NamedTuple):
    """Have a process that is to be an agent."""


class Start(NamedTuple):
    """To that process: become the agent. Without this word, which nobody says who has given up, it ends. Descriptors:
    the file of its `Agent`, its output, where it says whether it becomes one (`BECOMES`, or why not), and what it
    inherits.
    """


class Stay(NamedTuple):
    """End then, not before. The first of it: there is a note, by which others find this one."""

    until: float


class Leave(NamedTuple):
    """End now. Jobs that were started of it go on."""


class Took(NamedTuple):
    """There is a process, which waits for `Start`."""

    pid: int
    between: int = 0
    """The one that tells its end."""


BECOMES = b"."
"""All is prepared; what follows before the end of that pipe is why it was not executed."""


class Done(NamedTuple):
    """As it was told."""


class Ended(NamedTuple):
    """The agent's wait status."""

    status: int


class Agent(NamedTuple):
    """What an agent is started with."""

    argv: Tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str
    umask: int
    numbers: Tuple[int, ...]
    """Of the descriptors that it inherits."""


ToParent = Union[Begin, Fork]
FromParent = Union[Ready, Refused]
ToGate = Union[Go, Host]
FromGate = Union[Here, Hosts, Plain, Refused]

TO_PARENT: Vocabulary[ToParent] = Vocabulary({"begin": Begin, "fork": Fork})
FROM_PARENT: Vocabulary[FromParent] = Vocabulary({"ready": Ready, "refused": Refused})
TO_GATE: Vocabulary[ToGate] = Vocabulary({"go": Go, "host": Host})
FROM_GATE: Vocabulary[FromGate] = Vocabulary({"here": Here, "hosts": Hosts, "plain": Plain, "refused": Refused})
ORDERS: Vocabulary[Order] = Vocabulary({"order": Order})
ToKept = Union[Take, Start, Stay, Leave]
FromKept = Union[Took, Done, Ended, Refused]
KEPT_FILES: Vocabulary[Union[Keep, Agent]] = Vocabulary({"keep": Keep, "agent": Agent})
TO_KEPT: Vocabulary[ToKept] = Vocabulary({"take": Take, "start": Start, "stay": Stay, "leave": Leave})
FROM_KEPT: Vocabulary[FromKept] = Vocabulary({"took": Took, "done": Done, "ended": Ended, "refused": Refused})


def packet(words: Vocabulary[Any], word: Any) -> bytes:
    """One message as bytes."""
    return json.dumps(words.frame(word)[0]).encode()


def parse(words: Vocabulary[Any], data: bytes) -> Any:
    """The message in a packet. Raises BadMessage."""
    try:
        message = json.loads(data)
    except ValueError as error:
        raise BadMessage(f"no JSON: {error}") from None
    if not isinstance(message, dict):
        raise BadMessage("no JSON object")
    return words.parse(message)
