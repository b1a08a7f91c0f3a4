"""Where ranks' collectives part: who has called another one than the others, or fewer. Pure.

Asked by `watch`. Stacks show a rank that waits in no collective; they do not show which of those that all wait in one
has left one out before, or gave it another tensor.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.rank_names import ranks_text
from trainjob_api.recorded_calls import DEFAULT_GROUP, Call

_KINDS = 3
"""Different calls that are named."""
_Numbered = Dict[int, Dict[int, Call]]
"""By rank, by number."""


class Parting(NamedTuple):
    """What is told of it."""

    message: str
    ranks: Tuple[int, ...]
    """At which to look; empty: at none more than at others."""


def parting(calls: Mapping[int, Sequence[Call]]) -> Optional[Parting]:
    """None: as far as is known all ranks make the same calls, or nobody waits for one. `calls`: by rank."""
    groups: Dict[str, _Numbered] = {}
    for rank in sorted(calls):
        for call in calls[rank]:
            groups.setdefault(call.group, {}).setdefault(rank, {})[call.number] = call
    waited = {name: ranks for name, ranks in groups.items() if len(ranks) > 1 and _waits(ranks)}
    for name, ranks in waited.items():
        other = _other(name, ranks)
        if other is not None:
            return other
    behind = [each for each in (_behind(name, ranks) for name, ranks in waited.items()) if each is not None]
    waiting = {rank for rank, told in calls.items() if not all(call.ended for call in told)}
    return _fewer(_first(behind, waiting), waiting) if behind else None


def _waits(ranks: _Numbered) -> bool:
    return any(not call.ended for numbered in ranks.values() for call in numbered.values())


def _other(name: str, ranks: _Numbered) -> Optional[Parting]:
    """The first call of which ranks have different ones."""
    for number in sorted({number for numbered in ranks.values() for number in numbered if number > 0}):
        kinds: Dict[str, List[int]] = {}
        for rank, numbered in ranks.items():
            if number in numbered:
                kinds.setdefault(_told(numbered[number]), []).append(rank)
        if len(kinds) > 1:
            most, *others = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[1]))
            odd = tuple(sorted(rank for _, there in others for rank in there))
            said = ", ".join(f"{what} on {ranks_text(tuple(there))}" for what, there in [most, *others[: _KINDS - 1]])
            more = ", and others" if len(others) >= _KINDS else ""
            text = f"collective {number} of {_group(name)} is {said}{more}"
            return Parting(text, odd if len(most[1]) > len(odd) else ())
    return None


class _Behind(NamedTuple):
    group: str
    ranks: Tuple[int, ...]
    least: int
    """Collectives that one of them has called."""
    ahead: Tuple[int, ...]
    last: Call
    """In which those ahead wait."""


def _behind(name: str, ranks: _Numbered) -> Optional[_Behind]:
    """Ranks that have not called what the others wait in."""
    last = {rank: max(numbered) for rank, numbered in ranks.items()}
    most = max(last.values())
    ahead = tuple(rank for rank, number in last.items() if number == most)
    behind = tuple(rank for rank, number in last.items() if number < most)
    if not behind or all(ranks[rank][most].ended for rank in ahead):
        return None
    return _Behind(name, behind, min(last.values()), ahead, ranks[ahead[0]][most])


def _first(behind: List[_Behind], waiting: AbstractSet[int]) -> _Behind:
    """Of several groups: where one is behind who waits in no collective himself."""
    return next((each for each in behind if set(each.ranks) - waiting), behind[0])


def _fewer(found: _Behind, waiting: AbstractSet[int]) -> Parting:
    made = "no collective" if found.least == 0 else "1 collective" if found.least == 1 else f"{found.least} collectives"
    verb = "has" if len(found.ranks) == 1 else "have"
    text = (
        f"{ranks_text(found.ranks)} {verb} called {made} of {_group(found.group)}, {ranks_text(found.ahead)} "
        f"{found.last.number} (the last: {_told(found.last)})"
    )
    return Parting(text, tuple(rank for rank in found.ranks if rank not in waiting))


def _told(call: Call) -> str:
    return f"{call.what} {call.sizes}".rstrip()


def _group(name: str) -> str:
    return "the default group" if name == DEFAULT_GROUP else f"group {name}"
