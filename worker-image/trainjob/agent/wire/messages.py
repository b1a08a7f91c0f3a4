"""Messages between agents that have a structure of their own, as types: checked where they come in.

`to_message` gives what `trainjob_api.wire` encodes; `parse` raises KeyError, TypeError or ValueError for anything else,
which closes the connection it came on. The flat messages are told by their names in `peer_protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from trainjob.agent.wire import peer_protocol
from trainjob_api import contract, wire

KINDS = (contract.KIND_REPORT, contract.KIND_BARRIER, contract.KIND_BROADCAST)
MODES = (None, contract.UPLOAD_ASYNC, contract.UPLOAD_SYNC, contract.UPLOAD_NONE)


@dataclass(frozen=True)
class Callers:
    """Ranks of one agent that have called alike, in ascending order."""

    ranks: Tuple[int, ...]
    timeout_s: Optional[float] = None
    mode: Optional[str] = None
    """Upload mode of the checkpoints that they bring; None: they bring none."""
    stop: bool = False


@dataclass(frozen=True)
class Arrive:
    """Ranks of one agent wait in collective `n`: all of them in one message, unless one of them keeps the others
    waiting.
    """

    n: int
    kind: str
    callers: Tuple[Callers, ...]
    waited_s: float = 0.0
    """How long the first of them has waited for the others here."""
    row: Optional[Mapping[str, Any]] = None
    """What rank 0 reported, if it is among them."""
    metadata: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Of the checkpoint of the lowest rank that brings one with metadata: no other counts."""
    world_size: Optional[int] = None
    """Under a launcher: as its ranks were told."""

    def to_message(self) -> wire.Message:
        """As it is sent."""
        message: Dict[str, Any] = {
            "op": peer_protocol.ARRIVE,
            "n": self.n,
            "kind": self.kind,
            "callers": [[list(c.ranks), c.timeout_s, c.mode, c.stop] for c in self.callers],
            "waited_s": round(self.waited_s, 3),
        }
        if self.row is not None:
            message["row"] = self.row
        if self.metadata:
            message["metadata"] = {str(rank): found for rank, found in self.metadata.items()}
        if self.world_size is not None:
            message["world_size"] = self.world_size
        return message

    @classmethod
    def parse(cls, message: wire.Message) -> Arrive:
        """Raises KeyError, TypeError, ValueError."""
        n, kind, world_size = message["n"], message["kind"], message.get("world_size")
        if type(n) is not int or kind not in KINDS:
            raise ValueError(f"no collective: {kind!r} {n!r}")
        callers = tuple([_callers(*row) for row in message["callers"]])
        metadata = message.get("metadata")
        return cls(
            n,
            kind,
            callers,
            float(message["waited_s"]),
            _mapping(message["row"]) if "row" in message else None,
            {int(rank): _mapping(found) for rank, found in metadata.items()} if metadata else {},
            None if world_size is None else int(world_size),
        )


def _callers(ranks: List[int], timeout_s: Optional[float], mode: Optional[str], stop: bool) -> Callers:
    if mode not in MODES or set(map(type, ranks)) != {int}:
        raise ValueError(f"no callers: {ranks!r:.80} {mode!r:.80}")
    return Callers(tuple(ranks), None if timeout_s is None else float(timeout_s), mode, bool(stop))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value
