"""What agents say to each other: the names of the messages and the first frame.

Frames are those of `trainjob_api.wire`. A connection begins with the `handshake`. Members talk to rank 0's agent, which
is a member too (without a connection). All repeatable messages may come twice.
"""

from __future__ import annotations

from typing import Tuple

# member -> rank 0's agent
JOIN = "join"
"""{address, held: [`messages.Held`], started}: also after each new connection; `started`: the answer is known, ranks
run
"""
NOTE_IS = "note_is"
"""{sha} + packed release note; without a blob: it is not here"""
ARRIVE = "arrive"
"""`messages.Arrive` + blob of a broadcast: ranks of this member have called a collective"""
LOG = "log"
"""{rows}: log rows of rank 0"""
ENDED = "ended"
"""{rank, kind, how}: a rank process has ended"""
SEEN = "seen"
"""{pod, seen, where}: whether this member finds in the storage path what rank 0's agent wrote there"""
REPORTED = "reported"
"""{rank, timeout_s}: a rank asks for the run's checkpoints"""
STAGED = "staged"
"""{n, files: {rank: [[path, size]]}, warnings}"""
STAGE_FAILED = "stage_failed"
"""{n, message}"""
COMPARED = "compared"
"""{n, sums: {rank: {path: checksum}}}"""
PERSISTED = "persisted"
"""{n}"""
SHARED = "shared"
"""{id}: this agent's files of a checkpoint are on storage"""
SHARE_LOST = "share_lost"
"""{id, message}: this agent can never store its files of it"""
SHARE_FAILING = "share_failing"
"""{id, message, kind}: storage refuses for now; tried again"""
MOVED = "moved"
"""{bytes}: bytes stored so far"""
STACKS_ARE = "stacks_are"
"""{request, stacks: {rank: text}}"""
DAMAGED = "damaged"
"""{id, why}: in both directions: the checkpoint that was resumed is damaged; the attempt ends"""
BEAT = "beat"
"""{}: in both directions: nothing else was to be said, and the sender lives (`pulse`)"""
BYE = "bye"
"""{}: the connection closes in good order"""

# rank 0's agent -> member
JOINED = "joined"
"""{run, completed, members: [address], master_addr, master_port, claim: {run, nonce} | null} + packed {checkpoint,
holders: {address: bits}, adopt: [note]}
"""
NOTE = "note"
"""{sha}: send the release note of that hash"""
REFUSED = "refused"
"""{kind, message}: the attempt cannot begin, or must not go on; in a handshake {message}"""
REFUSAL_LIMIT = 4096
"""Bytes of a frame of one that has not proven itself to the caller."""
STAGE = "stage"
"""{n, id}"""
COMPARE = "compare"
"""{n, id, paths: {rank: [path]}}: the checksums of these staged files (strict)"""
PERSIST = "persist"
"""{n} + packed release note"""
UPLOAD = "upload"
"""{n}: store your share of the checkpoint of this call although its ranks still wait (SYNC)"""
RELEASE = "release"
"""{n, ranks: [..] | null, stop, checkpoint, warnings} + blob"""
FAIL = "fail"
"""{n, ranks, reason, message, about}"""
MISSING = "missing"
"""{text, ranks}: the ranks that wait, and what is to be said to them"""
STACKS = "stacks"
"""{request, ranks}"""
REPORTED_ARE = "reported_are"
"""{rank, checkpoints: [...], error}"""
COMMITTED = "committed"
"""{id}"""
DROP = "drop"
"""{id, why}"""
SHARE = "share"
"""{id}: share it again"""
UNSTORED = "unstored"
"""{message}: all ranks ended well, but a checkpoint cannot be stored and the job is to fail for that; to rank 0's
member alone
"""
NEEDED = "needed"
"""{ranks, message}: others were refused a call because these ranks have ended; an end with 0 is no success then"""
COMPLETED = "completed"
"""{}: the run's end record is written"""

# on a connection for files
GET = "get"
"""{id, path, start, length, offset, sum: algorithm | null}: of a file's bytes from `start` on, `length` many, those
from `offset` (in the file) on -> REFUSED {message} | FILE {size of the whole file, count, algorithm}, then `count`
bytes as they are, then END {sum: checksum from `start` on, null if none was asked for}. An agent that does not have
the algorithm takes crc32."""
FILE = "file"
END = "end"


def split_address(address: str) -> Tuple[str, int]:
    """(host, port) of `host:port` or `[v6]:port`. Raises ValueError."""
    host, found, port = address.rpartition(":")
    if not found or not port.isdigit():
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
