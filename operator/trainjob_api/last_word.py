"""The last word of an agent: one line in the container's termination message, which outlives agent, container and
operator.

The agent writes it as it ends (`trainjob.agent.control.farewell`), the operator reads it from the ended pod: what was
not said to a coordinator in time is not lost. Standard library only, Python 3.9.

    trainjob: completed run=1 attempt=2: {"progress":{"position":60,...},"latest":{"id":"1-2-60",...},...}
    trainjob: ended run=1 attempt=2 code=81 rank=3 kind=exception exit=1 at=1700000000.250 type=ValueError: bad shape
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional

from trainjob_api import contract

COMPLETED = "completed"
ENDED = "ended"
SHOWN = ("progress", "latest", "best", "checkpoint_count")
"""Fields of an agent's report that outlive a complete run, as rank 0's agent told them last: in its end record, in what
agents tell each other of it, in their last words.
"""
_HEAD = re.compile(r"trainjob: (completed|ended)((?: [a-z]+=[A-Za-z0-9_.-]{1,100})*)(?:: (.*))?")
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LARGEST = 2**53


class LastWord(NamedTuple):
    """What is known at an agent's end; None: not known, or there is none."""

    completed: bool = False
    """The run's end record is written, or was found."""
    run: Optional[int] = None
    attempt: int = 0
    code: int = contract.EXIT_OK
    """With which the agent ends."""
    rank: Optional[int] = None
    """The rank that broke first among those of this agent."""
    kind: str = ""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    ended_at: Optional[float] = None
    """Of that rank, seconds since the epoch by the agent's clock."""
    communication: bool = False
    error: str = ""
    """Type of its exception."""
    text: str = ""
    """The exception's message; without a rank, why the agent ends."""
    shown: str = ""
    """Of a complete run: SHOWN, as JSON."""


def to_text(word: LastWord) -> str:
    """One line of at most TERMINATION_LIMIT bytes."""
    head: Dict[str, object] = {"run": word.run, "attempt": word.attempt}
    if not word.completed:
        head["code"] = word.code
        if word.rank is not None:
            head.update(rank=word.rank, kind=word.kind, exit=word.exit_code, signal=word.signal)
            head["at"] = None if word.ended_at is None else f"{word.ended_at:.3f}"
            head["communication"] = 1 if word.communication else None
            head["type"] = _NAME.sub("_", word.error)[:100] or None
    told = "".join(f" {name}={value}" for name, value in head.items() if value is not None and value != "")
    line = f"trainjob: {COMPLETED if word.completed else ENDED}{told}"
    text = " ".join(word.text.split())
    if word.completed:
        line += f": {word.shown}" if word.shown else ""
    elif text:
        line += f": {text}"
    return line.encode("utf-8", "replace")[: contract.TERMINATION_LIMIT].decode("utf-8", "ignore")


def of_complete(run: Optional[int], attempt: int, shown: Iterable[Mapping[str, Any]]) -> str:
    """The line of a complete run, with the first of `shown` (which lack more and more) for which there is room."""
    for each in shown:
        told = json.dumps(each, separators=(",", ":"))
        line = to_text(LastWord(True, run, attempt, shown=told))
        if each and line.endswith(told):
            return line
    return to_text(LastWord(True, run, attempt))


def shown_in(text: str) -> Dict[str, Any]:
    """SHOWN, as far as a last word tells it. Whoever may write in the container may have written it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return shown_of(found)


def shown_of(found: object) -> Dict[str, Any]:
    """SHOWN, as far as it is there: older agents and end records tell nothing of it."""
    return {name: found[name] for name in SHOWN if found.get(name)} if isinstance(found, Mapping) else {}


def from_text(text: str) -> Optional[LastWord]:
    """What a container's termination message says; None: it is not an agent's. Whoever may write in the container
    may write this.
    """
    found = _HEAD.fullmatch(text.strip())
    if found is None:
        return None
    told = dict(pair.split("=", 1) for pair in found[2].split())
    return LastWord(
        completed=found[1] == COMPLETED,
        run=_whole(told.get("run")),
        attempt=_whole(told.get("attempt")) or 0,
        code=_whole(told.get("code")) or 0,
        rank=_whole(told.get("rank")),
        kind=told.get("kind", ""),
        exit_code=_whole(told.get("exit")),
        signal=_whole(told.get("signal")),
        ended_at=_seconds(told.get("at")),
        communication=told.get("communication") == "1",
        error=told.get("type", ""),
        text=(found[3] or "") if found[1] == ENDED else "",
        shown=(found[3] or "") if found[1] == COMPLETED else "",
    )


def _whole(text: Optional[str]) -> Optional[int]:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return None
    return min(int(text), _LARGEST)


def _seconds(text: Optional[str]) -> Optional[float]:
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text) else None
