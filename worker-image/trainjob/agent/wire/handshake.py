"""How two agents come to trust each other: each proves that it knows the secret of this job's attempt, none shows it.

Pure; used by `peers` (both sides) and `restoring.fetching` (in threads). The caller says `Hello` with a nonce; the
other side answers with a nonce of its own and its proof, which the caller checks before it says anything more; then
the caller proves itself. A proof is an HMAC over what was said on this connection and the side that says it: neither a
recorded nor a reflected one is worth anything. The coordinator derives the secret for each job and attempt, so an
agent that has slept through a newer attempt cannot prove itself any more.

This keeps strangers out; it does not encrypt. Who can change packets on the way between two agents is not kept out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import asdict, dataclass

from trainjob_api import wire

VERSION = 4
"""Of what agents say to each other. One that speaks another is told so and refused. 1 showed the secret itself, 2 knew
no beats.
"""

HELLO = "hello"
"""{version, purpose: member | files, attempt, index, nonce}; from the other side, without fields: come in."""
CHALLENGE = "challenge"
"""{nonce, proof}: the answer to hello."""
PROOF = "proof"
"""{proof}: the caller's."""
MEMBER = "member"
FILES = "files"
REFUSED = "refused"
"""{kind, message}: the end of it, from the other side."""
REFUSAL_LIMIT = 4096
"""Bytes of a frame of one that has not proven itself to the caller."""
FRAME_LIMIT = 2048
"""Bytes of a frame before its sender has proven who it is."""
TEXT_LIMIT = 600
WAY_OUT = "Suspend the job and resume it: then all its pods are of one version."
OTHER_VERSION = "version"
"""Kind of a refusal: it will not pass by itself."""
OVER = "over"
"""Kind of a refusal: the caller's attempt is over, as it will hear any moment itself."""
_NONCE_BYTES = 32
_NUMBER_LIMIT = 2**53


class OtherVersion(ValueError):
    """The caller is of another version of TrainJob; the text is for people."""


@dataclass(frozen=True)
class Hello:
    """The first frame."""

    purpose: str
    attempt: int
    index: int
    nonce: str

    def to_message(self) -> wire.Message:
        """As it is sent."""
        return {"op": HELLO, "version": VERSION, **asdict(self)}


def hello(purpose: str, attempt: int, index: int) -> Hello:
    """A new one, for one connection."""
    return Hello(purpose, attempt, index, nonce())


def nonce() -> str:
    """Never used before."""
    return os.urandom(_NONCE_BYTES).hex()


def parse(message: wire.Message) -> Hello:
    """Raises OtherVersion, and ValueError for what is no hello."""
    if message.get("op") != HELLO:
        raise ValueError("the first frame is no hello")
    version = message.get("version", 1)
    if version != VERSION:
        raise OtherVersion(
            f"An agent of another version of TrainJob calls (it speaks version {str(version)[:8]} of the agents' "
            f"protocol, this one {VERSION}). The operator was likely changed while the job ran. {WAY_OUT}"
        )
    purpose, given = message.get("purpose"), message.get("nonce")
    numbers = (message.get("attempt"), message.get("index"))
    if purpose not in (MEMBER, FILES) or not all(type(n) is int and 0 <= n < _NUMBER_LIMIT for n in numbers):
        raise ValueError("a hello names its purpose, attempt and index")
    return Hello(str(purpose), int(numbers[0] or 0), int(numbers[1] or 0), _checked(given))


def challenge(secret: str, hello: Hello, own: str) -> wire.Message:
    """The answer to a hello: `own` nonce, and our proof."""
    return {"op": CHALLENGE, "nonce": own, "proof": _proof(secret, "server", hello, own)}


def answer(secret: str, hello: Hello, message: wire.Message) -> wire.Message:
    """The caller's proof, once the other side has proven itself. Raises ValueError if it has not."""
    if message.get("op") != CHALLENGE:
        raise ValueError(str(message.get("message") or "it does not prove that it is of this job")[:TEXT_LIMIT])
    other = _checked(message.get("nonce"))
    if not _same(message.get("proof"), _proof(secret, "server", hello, other)):
        raise ValueError("it does not know the secret of this attempt: it is no agent of this job, or not in it yet")
    return {"op": PROOF, "proof": _proof(secret, "caller", hello, other)}


def is_proven(secret: str, hello: Hello, own: str, message: wire.Message) -> bool:
    """Whether the caller knows the secret."""
    return message.get("op") == PROOF and _same(message.get("proof"), _proof(secret, "caller", hello, own))


def _proof(secret: str, side: str, hello: Hello, other: str) -> str:
    said = "\n".join((str(VERSION), side, hello.purpose, str(hello.attempt), str(hello.index), hello.nonce, other))
    return hmac.new(secret.encode(), said.encode(), hashlib.sha256).hexdigest()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _checked(given: object) -> str:
    if not isinstance(given, str) or len(given) != 2 * _NONCE_BYTES or not given.isalnum():
        raise ValueError("no nonce")
    return given
