"""What is said of ranks that hang: who waits, since when, and at whom to look. Pure.

Called by `watch` with what faulthandler wrote of each rank. Ranks that wait in a collective are not to blame while
there is one that does not; where all wait, torch's record of their collectives says who to look at (`calls`).
"""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.call_names import CALL_NAMES, by_rank_0_alone
from trainjob.agent.hangs import grouping
from trainjob.agent.hangs.calls import Parting
from trainjob.agent.hangs.grouping import Group
from trainjob.agent.rank_names import ranks_text

_DEBUGGER = re.compile(r"/(pdb|bdb|pudb/[^/]*|debugpy/.*)\.py$")
_NAMED = 4
"""Suspects of which each is told by itself; at 512 ranks the first few say it."""
TRACED = "a debugger or tracer holds it"
"""As `processes.stacks` says it."""


class Verdict(NamedTuple):
    """What is told of a hang."""

    message: str
    ranks: Tuple[int, ...]
    """At which to look; empty: at none more than at others."""


def verdict(
    stacks: Mapping[int, str], places: Mapping[int, str], since: str, parted: Optional[Parting] = None
) -> Verdict:
    """`stacks`: of each rank, or a sentence why there is none; `places`: its node or pod; `since`: as people say it;
    `parted`: how their collectives differ.
    """
    groups = grouping.group(stacks)
    waiting = [each for each in groups if grouping.waits(each.text)]
    suspects = [each for each in groups if not grouping.waits(each.text)] if waiting else _minority(groups)
    if waiting and not suspects:
        return _all_wait(waiting, len(stacks), since, parted)
    ranks = tuple(sorted(rank for each in suspects for rank in each.ranks))
    told = [_told(each, places) for each in suspects[:_NAMED]]
    if len(suspects) > _NAMED:
        told.append(f"{sum(len(each.ranks) for each in suspects[_NAMED:])} more stand in other places")
    others = waiting or [each for each in groups if each not in suspects]
    if not suspects:
        first = groups[0]
        said = f"{_whole(first, len(stacks), places)} {_stands(first)} since {since}, without a step"
        return Verdict(said, ()) if parted is None else Verdict(f"{said}: {_parted(parted)}", parted.ranks)
    said = "; ".join(f"{_share(each, len(stacks))} {_stands(each)}" for each in others[:2])
    look = f"Look at {ranks_text(ranks)}." if len(ranks) <= 2 * _NAMED else ""
    return Verdict(f"{said} since {since}; {'; '.join(told)}. {look}".rstrip(), ranks)


def is_debugged(stacks: Mapping[int, str]) -> bool:
    """Somebody looks at a rank with a debugger: it stands still because it is to."""
    return any(
        TRACED in text or any(_DEBUGGER.search(frame.file) for frame in grouping.main_thread(text))
        for text in stacks.values()
    )


def _all_wait(groups: List[Group], total: int, since: str, parted: Optional[Parting]) -> Verdict:
    odd = grouping.odd(groups) if parted is None else parted.ranks
    if len(groups) == 1:
        why = "a collective that does not end" if parted is None else _parted(parted)
        return Verdict(f"all {total} ranks {_stands(groups[0])} since {since}: {why}", odd)
    told = "; ".join(f"{ranks_text(each.ranks)} {_stands(each)}" for each in groups[:_NAMED])
    why = f"Do all of them make the same calls?{_look(odd)}" if parted is None else _parted(parted)
    return Verdict(f"ranks wait for each other since {since}: {told}. {why}{_alone(groups)}", odd)


def _alone(groups: List[Group]) -> str:
    """The likely cause where rank 0 alone waits in a call of ours."""
    calls = {f"{grouping.call(grouping.main_thread(each.text))}()": each.ranks for each in groups}
    said = [by_rank_0_alone(call, ranks) for call, ranks in calls.items() if call in CALL_NAMES.values()]
    return "".join(f" {each}" for each in said if each)


def _parted(parted: Parting) -> str:
    return f"{parted.message}.{_look(parted.ranks)}"


def _look(ranks: Tuple[int, ...]) -> str:
    return f" Look at {ranks_text(ranks)}." if ranks else ""


def _minority(groups: List[Group]) -> List[Group]:
    odd = set(grouping.odd(groups))
    return [each for each in groups if odd.issuperset(each.ranks)] if odd else []


def _stands(group: Group) -> str:
    """`wait in all_reduce (train.py:41)`; of one rank `waits`."""
    one = len(group.ranks) == 1
    frames = grouping.main_thread(group.text)
    if not frames:
        return group.where
    called, mine = grouping.call(frames), grouping.users(frames)
    place = "" if mine is None else f" ({mine.place})"
    if grouping.waits(group.text):
        return f"{'waits' if one else 'wait'} in {called}{place}"
    where = f"{called}{place}" if mine is None or mine is not frames[0] else f"{mine.place} {mine.function}"
    return f"{'is' if one else 'are'} in {where}"


def _told(group: Group, places: Mapping[int, str]) -> str:
    """A suspect: `rank 3 (gpu-b) is in train.py:88 load_batch`."""
    frames, mine = grouping.main_thread(group.text), None
    if frames:
        mine = grouping.users(frames)
    where = group.where if not frames or mine is None else f"{mine.place} {mine.function}"
    verb = "" if not frames else "is in " if len(group.ranks) == 1 else "are in "
    return f"{_named(group.ranks, places)} {verb if mine is not None else ''}{where}".replace("  ", " ")


def _named(ranks: Tuple[int, ...], places: Mapping[int, str]) -> str:
    place = places.get(ranks[0], "")
    return f"{ranks_text(ranks)} ({place})" if place and len(ranks) == 1 else ranks_text(ranks)


def _share(group: Group, total: int) -> str:
    return ranks_text(group.ranks) if len(group.ranks) == 1 else f"{len(group.ranks)} of {total} ranks"


def _whole(group: Group, total: int, places: Mapping[int, str]) -> str:
    return _named(group.ranks, places) if total == 1 else f"{len(group.ranks)} of {total} ranks"
