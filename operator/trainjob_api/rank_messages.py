"""What a rank and its agent say to each other on the rank's Unix socket, as types. Both ends import this.

A rank makes one call at a time. Calls that all ranks make together (`Collective`) are numbered from 1 by each program;
their answers (`Released`, `Failed`) carry that number.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple, Union

from trainjob_api import contract
from trainjob_api.typed import Object, Vocabulary

# --- A rank says ------------------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first frame of each connection."""

    rank: int
    attempt: int
    world_size: int
    local_rank: int = 0
    pid: int = 0
    n: int = 0
    """Of this greeting: a later one of the machine has a higher number. They may be read in another order."""
    first: int = 0
    """That of this program's first one. It has lost the connections before this."""
    heard: int = 0
    """Words of its agent that it has read over those before. The agent says its last one again if that is not among
    them: the program may have lost it, and waits for it.
    """


class Offer(NamedTuple):
    """A checkpoint that a rank brings to report()."""

    path: str
    mode: str = contract.UPLOAD_ASYNC
    delete: bool = False
    """The files may be moved away."""
    metadata: Optional[Object] = None

    def check(self) -> None:
        """Raises ValueError."""
        if self.mode not in contract.UPLOAD_MODES:
            raise ValueError(f"mode: expected one of {', '.join(contract.UPLOAD_MODES)}, found {self.mode[:20]!r}")


class Collective(NamedTuple):
    """A call that all ranks make together. What only report() has: from `metrics` on; its blob is the state of a rank
    that brings a checkpoint, a broadcast's what rank 0 sends. `has_state`: it gives it when it is asked (`AskState`).
    """

    n: int
    kind: str
    timeout_s: Optional[float] = None
    metrics: Optional[Object] = None
    step: Optional[int] = None
    total_steps: Optional[int] = None
    epoch: Optional[int] = None
    checkpoint: Optional[Offer] = None
    stop: bool = False
    has_state: bool = False
    blob: bytes = b""
    wanted: bool = False
    """Its metrics go into the history beside rank 0's: somebody follows those of all ranks."""

    def check(self) -> None:
        """Raises ValueError."""
        if self.kind not in contract.KINDS:
            raise ValueError(f"kind: expected one of {', '.join(contract.KINDS)}, found {self.kind[:20]!r}")


class State(NamedTuple):
    """The rank's state, to go with the checkpoint that another rank brought to report() n; or why there is none."""

    n: int
    error: Optional[str] = None
    blob: bytes = b""


class LogRow(NamedTuple):
    """One log()."""

    metrics: Object
    step: Optional[int]
    time: float


class Log(NamedTuple):
    """Rows of log(), in order."""

    rows: Tuple[LogRow, ...]


class Begun(NamedTuple):
    """When the rank made its first step, and when it had a process group and its checkpoint; by the machine's monotonic
    clock. Told when it has asked for the checkpoint, and again with its first step.
    """

    first_step: Optional[float] = None
    group: Optional[float] = None
    restored: Optional[float] = None


class Paced(NamedTuple):
    """How a rank's last steps went: in seconds of a usual one of them."""

    steps: int
    """So many it has made by now: ranks that tell of the same one tell of the same time."""
    step_s: float
    data_s: float
    """For its batch."""
    work_s: float
    """What else is surely the rank's own."""
    noise_s: float
    """The standard error of both together: steps differ."""
    over: int
    """Steps that this tells of."""
    by_loader: bool = False
    """A step is a batch of a prepared loader; else it lies between two report()s."""
    device: bool = False
    """It computes on a device, so that `work_s` says nothing."""

    def check(self) -> None:
        """Raises ValueError."""
        if self.steps < 0 or self.over < 1 or not all(0 <= each < float("inf") for each in self[1:5]):
            raise ValueError("a pace is made of times")


class Error(NamedTuple):
    """The exception that ends this rank: `contract.RankError`, and the kind of its end."""

    kind: str
    type: str
    message: str
    traceback: str
    communication: bool


class Leaving(NamedTuple):
    """The script has ended, with this exit code where it is known. Threads that are no daemons, and children, may keep
    the process.
    """

    code: Optional[int] = None
    threads: Tuple[str, ...] = ()
    children: Tuple[str, ...] = ()
    message: str = ""
    """What sys.exit() was given instead of a code."""
    traceback: str = ""
    """Where the script ended itself with a code other than 0."""


class Farewell(NamedTuple):
    """The process ends of its own accord, with this exit code where it is known. Who closes without it was killed."""

    code: Optional[int] = None
    becomes: bool = False
    """It becomes another program (exec), if that is found: a word after this one takes it back."""


class Restore(NamedTuple):
    """Which checkpoint is there? None: the one that the attempt resumes from."""

    id: Optional[str] = None


class Fetch(NamedTuple):
    """Bring these files of it (None: all); `apart`: for user code, which may write to them."""

    id: str
    paths: Optional[Tuple[str, ...]] = None
    apart: bool = False


class Reported(NamedTuple):
    """Which checkpoints does the run have on storage?"""

    timeout_s: Optional[float] = None


class Validated(NamedTuple):
    """Rank 0: a checkpoint is to be validated, and is kept until that is `over`; then its metrics are on storage."""

    id: str
    over: bool = False


FromRank = Union[
    Hello, Collective, State, Log, Begun, Paced, Error, Leaving, Farewell, Restore, Fetch, Reported, Validated
]
FROM_RANK: Vocabulary[FromRank] = Vocabulary(
    {
        contract.OP_HELLO: Hello,
        contract.OP_COLLECTIVE: Collective,
        contract.OP_STATE: State,
        contract.OP_LOG: Log,
        contract.OP_BEGUN: Begun,
        contract.OP_PACED: Paced,
        contract.OP_ERROR: Error,
        contract.OP_LEAVING: Leaving,
        contract.OP_FAREWELL: Farewell,
        contract.OP_RESTORE: Restore,
        contract.OP_FETCH: Fetch,
        contract.OP_REPORTED: Reported,
        contract.OP_VALIDATED: Validated,
    }
)

# --- Its agent answers ------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """The checkpoint of a report() that was released."""

    id: str
    uri: Optional[str]
    level: str


class AskState(NamedTuple):
    """Another rank brought a checkpoint to report() n: what is your state?"""

    n: int


class Preemption(NamedTuple):
    """Workers are to go."""

    workers: Mapping[str, Tuple[int, ...]]
    """The ranks of each, by the name of its pod."""
    gone_at: Optional[float] = None
    """When the first of them is gone, in seconds since the epoch; None: nobody knows."""


class Released(NamedTuple):
    """All ranks have called. The blob of a broadcast."""

    n: int
    stop: bool
    checkpoint: Optional[Saved] = None
    warnings: Tuple[str, ...] = ()
    blob: bytes = b""
    requested: bool = False
    """A planned change waits for the next checkpoint: now would be a good time for one."""
    preemption: Optional[Preemption] = None
    """Of what is requested: some of us are to go."""


class Failed(NamedTuple):
    """The call cannot be answered; `ranks` are to blame."""

    reason: str
    message: str
    ranks: Tuple[int, ...] = ()
    n: Optional[int] = None
    """Of a collective."""


class Restored(NamedTuple):
    """{id, listing, state, uri, step, epoch, metrics, world_size, position, metadata}; None: there is none."""

    checkpoint: Optional[Object]


class Fetched(NamedTuple):
    """The files are here."""

    folder: str


class ReportedAre(NamedTuple):
    """{id, path, metrics} of each, oldest first."""

    checkpoints: Tuple[Mapping[str, Any], ...]


class Repeated(NamedTuple):
    """The next word is the agent's n-th to this program, said before over a connection that the program has lost."""

    n: int


ToRank = Union[AskState, Released, Failed, Restored, Fetched, ReportedAre, Repeated]
TO_RANK: Vocabulary[ToRank] = Vocabulary(
    {
        contract.OP_ASK_STATE: AskState,
        contract.OP_RELEASED: Released,
        contract.OP_FAILED: Failed,
        contract.OP_RESTORED: Restored,
        contract.OP_FETCHED: Fetched,
        contract.OP_REPORTED_ARE: ReportedAre,
        contract.OP_REPEATED: Repeated,
    }
)
