"""How each attempt of a job began, part by part, and where the job's time went: tables, bars and JSON for `tj history
--parts` and `tj status`; pure. The same for a job of this machine and one of a cluster, from the status alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainjob.screen import table, wording

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import PartsMs, TrainJobStatus

BAR_WIDTH = 40
PARTS = (
    ("detected", "DETECTED", "d"),
    ("waited", "WAITED", "w"),
    ("decided", "DECIDED", "e"),
    ("stopped", "STOPPED", "s"),
    ("joined", "JOINED", "j"),
    ("forked", "FORKED", "f"),
    ("group", "GROUP", "g"),
    ("restored", "RESTORED", "r"),
    ("first_step", "STEP", "1"),
)
"""Field, column, and its letter in the bar."""


@dataclass(frozen=True)
class Start:
    """The beginning of one attempt."""

    attempt: int
    cause: str
    end_cause: str | None
    ranks: int
    parts: PartsMs
    spares: str | None = None
    """Slots of spare workers that it took, as ranges."""
    resumed_from: str | None = None
    message: str | None = None
    """What ended it, in a sentence."""
    lost_seconds: float | None = None

    @property
    def total_ms(self) -> int:
        """All that is known of it."""
        return total_ms(self.parts)


def starts(status: TrainJobStatus) -> list[Start]:
    """Those whose clock is known, in their order, the running attempt last."""
    found = [
        Start(
            one.attempt,
            one.cause,
            one.end_cause,
            one.world_size,
            one.parts_ms,
            one.from_spares,
            one.resumed_from,
            one.message,
            one.lost_seconds,
        )
        for one in status.history
        if one.parts_ms is not None
    ]
    last = status.attempt
    if last is not None and last.parts_ms is not None and last.number not in [one.attempt for one in status.history]:
        began = (last.number, last.cause, last.end_cause, last.world_size, last.parts_ms)
        found.append(Start(*began, spares=last.from_spares, resumed_from=last.resumed_from))
    return found


def total_ms(parts: PartsMs) -> int:
    """From the end of the attempt before to the first step, as far as it was measured."""
    return sum(value for value in parts.model_dump().values() if value is not None)


def lines(status: TrainJobStatus, now: float | None = None) -> list[str]:
    """The table of the starts, a bar for each, and where the time went; empty where nothing is known."""
    found = starts(status)
    if not found:
        return goodput(status, now)
    rows = [
        [
            *(str(start.attempt), began_by(start.cause, start.spares), str(start.ranks)),
            *(_cell(getattr(start.parts, name)) for name, _, _ in PARTS),
            _ms(start),
        ]
        for start in found
    ]
    header = ("ATTEMPT", "BEGAN BY", "RANKS", *(column for _, column, _ in PARTS), "TOTAL")
    longest = max(start.total_ms for start in found)
    bars = [f"{start.attempt:>7}   |{bar(start.parts, longest)}" for start in found]
    key = ", ".join(f"{letter} {name.replace('_', ' ')}" for name, _, letter in PARTS)
    return [*table.lines(header, rows), "", *bars, f"{'':>7}   {key}", *_apart(goodput(status, now))]


def began_by(cause: str, spares: str | None) -> str:
    """`PodLost (spare 3)`: a spare worker took the place of one that was lost, in the pod of that number."""
    return f"{cause} (spare {spares})" if spares else cause


def bar(parts: PartsMs, longest_ms: int) -> str:
    """Each part as wide as its share of the longest start."""
    drawn, at = "", 0
    for name, _, letter in PARTS:
        at += getattr(parts, name) or 0
        wide = round(BAR_WIDTH * at / longest_ms) if longest_ms else 0
        drawn += letter * (wide - len(drawn))
    return drawn


STALE_S = 15.0
"""A figure that is older says so; while steps are told of it is written every 10 s."""


def goodput(status: TrainJobStatus, now: float | None = None, *, killed: bool = False) -> list[str]:
    """`goodput 97.3% of 12m05s: productive 11m45s, down 12s, lost 8.1s`, the largest loss before the others. With
    `now`, of a job that runs and of which nothing was written for a while: `of its first 12m05s, up to 2m10s ago: ...`.
    `killed`: its launcher was, so that nobody wrote more.
    """
    books = status.goodput
    if books is None or books.summary is None:
        return []
    places = {name: value for name, value in books.seconds.model_dump().items() if value >= 0.05}
    whole = sum(books.seconds.model_dump().values())
    losses = sorted(
        ((value, name) for name, value in places.items() if name not in ("productive", "suspended")), reverse=True
    )
    told = [(places.get("productive", 0.0), "productive"), *losses]
    told += [(places["suspended"], "suspended")] if "suspended" in places else []
    said = ", ".join(f"{name.replace('_', ' ')} {wording.duration(value)}" for value, name in told)
    age = 0.0 if now is None or status.finished else now - books.at.timestamp()
    span = wording.duration(whole)
    if age > STALE_S:
        span = f"its first {span}, up to {wording.duration(age)} ago"
    if killed:
        span = f"its first {span}, as of its launcher's last word"
    return [f"goodput {books.summary} of {span}: {said}"]


def forks(status: TrainJobStatus) -> list[str]:
    """How the ranks of the newest attempt were started, and what the next start will not import again."""
    how = None if status.attempt is None else status.attempt.forks
    if how is None:
        return []
    told = [f"ranks started as forks: {how.ranks}"] if how.ranks else []
    told += [f"ranks started in new interpreters: {how.reason}"] if how.reason else []
    told += [f"imported ahead from the next start on: {', '.join(how.learned)}"] if how.learned else []
    return told


def as_json(status: TrainJobStatus) -> list[dict[str, Any]]:
    """An object of kind `attempt` for each start, and one of kind `goodput`."""
    found: list[dict[str, Any]] = [
        {
            "kind": "attempt",
            "attempt": start.attempt,
            "cause": start.cause,
            "endCause": start.end_cause,
            "worldSize": start.ranks,
            "partsMs": start.parts.to_json(),
            "totalMs": start.total_ms,
            **({"fromSpares": start.spares} if start.spares else {}),
            **({"resumedFrom": start.resumed_from} if start.resumed_from else {}),
            **({"message": start.message} if start.message else {}),
            **({"lostSeconds": start.lost_seconds} if start.lost_seconds else {}),
        }
        for start in starts(status)
    ]
    return found + ([{"kind": "goodput", **status.goodput.to_json()}] if status.goodput is not None else [])


def _cell(value: int | None) -> str:
    return "" if value is None else _text(value)


def _ms(start: Start) -> str:
    return _text(start.total_ms)


def _text(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 10_000 else wording.duration(milliseconds / 1000)


def _apart(text: list[str]) -> list[str]:
    return ["", *text] if text else []
