"""Which ranks keep the others waiting, by what all ranks say of the same steps. Pure.

Fed by `watch` at rank 0's agent. In synchronous training all ranks take equally long for a step, so that no step time
says anything. What differs is a rank's own part of it: the time for its batch, processor time of its main thread, and
time in which it had work and was kept from it (no free processor, a stopped process, a disk). A rank whose own part is
larger than that of the others, while they have that much more of a step left to wait in, is what they wait for.

"Larger" is the rule for outliers of B. Iglewicz and D. Hoaglin (How to Detect and Handle Outliers, 1993): further from
the median than 3.5 times the median absolute deviation over 0.6745; both of the *other* ranks, so that one of two can
be told, and a whole slow node of many. Beside it stands how certain each rank's own figures are: steps differ.
"""

from __future__ import annotations

from collections import deque
from math import hypot, sqrt
from statistics import median, stdev
from typing import Callable, Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.wire.from_member import PaceOf

FAR, DEVIATION = 3.5, 0.6745
LEAST_SHARE = 0.15
"""Of a step: who is behind by less costs less than what looking for it does."""
WAITED_SHARE = 0.5
"""So much of what a rank is behind the others must have left to wait in: a sleep of its own shows in none of these."""
CERTAIN = 5.0
"""Standard errors: the steps of a rank differ, and a few of them say little."""
SPANS = (1, 2, 4, 8)
"""Windows that are looked at as one: what is seen at once, and what shows only in the long run."""
QUEUED_SPAN = 4
"""From here on the time without a processor counts: how much it is on a crowded machine changes from one window to the
next, and nothing within one says how much.
"""
IN_ROW = 2
"""Such spans after each other that must say it, until it is told, or taken back."""
ENOUGH = 0.75
"""Of all ranks, to compare those that tell of the same step; the others had another pace."""
LATE_S = 30.0
"""Whose word is missing after so long is not waited for."""
KEPT = 4
"""Windows that wait for the rest of their ranks."""


class Parts(NamedTuple):
    """Of a rank's time, 0 to 1 each; together 1."""

    data: float
    compute: float
    held: float
    """It had work, and was kept from it."""
    wait: float
    """The rest: mostly in collectives, for others."""


class Behind(NamedTuple):
    """A rank that the others wait for."""

    rank: int
    share: float
    """Of each step: what it is behind the usual rank."""
    step_s: float
    parts: Parts
    usual: Parts
    """Of the others, the medians."""
    held_by: str
    """What of `held` is most: queued, stopped or disk; empty: nothing."""


def parts(pace: PaceOf) -> Parts:
    """What of a step is the rank's own, and what is left."""
    if pace.step_s <= 0:
        return Parts(0.0, 0.0, 0.0, 1.0)
    data = min(1.0, pace.data_s / pace.step_s)
    # Of ranks on a device processor time is also that in which they look whether the device has finished, and a host
    # that is held up loses nothing while the device has work.
    compute = 0.0 if pace.device else min(1.0 - data, pace.work_s / pace.step_s)
    kept = pace.stopped if pace.device else pace.queued + pace.stopped + pace.disk
    # What kept it while it waited for its batch is in `data` already.
    held = min(1.0 - data - compute, kept * (1.0 - data))
    return Parts(data, compute, max(0.0, held), max(0.0, 1.0 - data - compute - held))


def behind(paces: Mapping[int, PaceOf]) -> Dict[int, Behind]:
    """Of ranks that tell of the same steps, those that the others wait for."""
    of = {rank: parts(pace) for rank, pace in paces.items()}
    if len(of) < 2:
        return {}
    middle = median(each.wait for each in of.values())
    found = {}
    for rank, mine in of.items():
        if mine.wait > middle - LEAST_SHARE / 2:
            continue  # not behind, whatever the others are: of hundreds of ranks few are compared with all
        if rank == 0 and not paces[rank].by_loader:
            continue  # between two report()s rank 0 evaluates and saves for all: that is no fault of its node
        said = _against(rank, mine, {other: each for other, each in of.items() if other != rank}, paces)
        if said is not None:
            found[rank] = said
    return found


def _against(rank: int, mine: Parts, others: Mapping[int, Parts], paces: Mapping[int, PaceOf]) -> Optional[Behind]:
    pace, usual = paces[rank], Parts(*(median(column) for column in zip(*others.values())))
    rest = median(each.wait for each in others.values())
    share, spread = rest - mine.wait, median(abs(each.wait - rest) for each in others.values())
    # A median of m varies like one of them over the root of m, times this.
    error = 1.2533 * median(_noise(paces[other]) for other in others) / sqrt(len(others))
    least = max(LEAST_SHARE, FAR / DEVIATION * spread, CERTAIN * hypot(_noise(pace), error))
    if share < least or mine.wait > rest - WAITED_SHARE * share:
        return None
    return Behind(rank, share, pace.step_s, mine, usual, _held_by(pace, mine))


def _noise(pace: PaceOf) -> float:
    return pace.noise_s / pace.step_s if pace.step_s > 0 else 0.0


def together(paces: Sequence[PaceOf]) -> PaceOf:
    """Several windows of a rank as one."""
    count = sum(pace.over for pace in paces)

    def mean(of: Callable[[PaceOf], float]) -> float:
        return sum(of(pace) * pace.over for pace in paces) / count

    within = sqrt(sum((pace.noise_s * pace.over) ** 2 for pace in paces)) / count
    between = 0.0
    if len(paces) > 1:
        own = [(1.0 - parts(pace).wait) * pace.step_s for pace in paces]
        between = stdev(own) / sqrt(len(own))  # a rank that is slow for a while and quick for a while
    return paces[-1]._replace(
        step_s=mean(lambda pace: pace.step_s),
        data_s=mean(lambda pace: pace.data_s),
        work_s=mean(lambda pace: pace.work_s),
        noise_s=max(within, between),
        over=count,
        queued=mean(lambda pace: pace.queued),
        stopped=mean(lambda pace: pace.stopped),
        disk=mean(lambda pace: pace.disk),
    )


def _held_by(pace: PaceOf, mine: Parts) -> str:
    kinds = {"queued": pace.queued, "stopped": pace.stopped, "disk": pace.disk}
    if pace.device:
        kinds = {"stopped": pace.stopped}
    most = max(kinds, key=lambda kind: kinds[kind])
    return most if mine.held > 0 else ""


class _Window(NamedTuple):
    since: float
    paces: Dict[int, PaceOf]


class Straggling:
    """One attempt's."""

    def __init__(self) -> None:
        self._open: Dict[Tuple[bool, int], _Window] = {}
        self._judged = -1
        """Up to this step."""
        self._count = 0
        self._span: Dict[int, int] = {}
        """Of those that are told: with which span they were found."""
        self._past: Dict[int, Deque[PaceOf]] = {}
        """By rank: the windows that were judged."""
        self.told: Dict[int, Behind] = {}
        """Who keeps the others waiting, as it was when that was found."""

    def came(self, now: float, total: int, paces: Mapping[int, PaceOf]) -> bool:
        """What an agent says of its ranks; of all ranks there are `total`. Whether another verdict stands."""
        for rank, pace in paces.items():
            if pace.steps > self._judged:
                window = self._open.setdefault((pace.by_loader, pace.steps), _Window(now, {}))
                window.paces[rank] = pace
        before = set(self.told)
        for key in sorted(self._open):
            there = self._open.get(key)
            if there is not None and self._is_complete(now, total, there):
                self._judge(key, there.paces)
        while len(self._open) > KEPT:
            del self._open[min(self._open, key=lambda key: self._open[key].since)]
        return set(self.told) != before

    def _is_complete(self, now: float, total: int, window: _Window) -> bool:
        if len(window.paces) == total:
            return True
        return now - window.since >= LATE_S and len(window.paces) >= max(2, ENOUGH * total)

    def _judge(self, key: Tuple[bool, int], paces: Mapping[int, PaceOf]) -> None:
        self._judged, self._count = key[1], self._count + 1
        self._open = {other: window for other, window in self._open.items() if other[1] > key[1]}
        for rank, pace in paces.items():
            past = self._past.setdefault(rank, deque(maxlen=IN_ROW * max(SPANS)))
            if past and past[-1].by_loader != pace.by_loader:
                past.clear()
            past.append(pace)
        for span in SPANS:
            if self._count % span == 0:
                self._look(span, [self._block(paces, span, back) for back in range(IN_ROW)])

    def _block(self, there: Iterable[int], span: int, back: int) -> Dict[int, PaceOf]:
        """So many windows as one, that many such blocks ago, of all ranks that have them."""
        found = {}
        for rank in there:
            past = list(self._past[rank])
            windows = past[len(past) - span * (back + 1) : len(past) - span * back]
            if len(past) >= span * (back + 1):
                found[rank] = together(windows)
        return found

    def _look(self, span: int, blocks: Sequence[Dict[int, PaceOf]]) -> None:
        judged = list(blocks)
        if span < QUEUED_SPAN:
            judged = [{rank: pace._replace(queued=0.0) for rank, pace in block.items()} for block in blocks]
        found = [behind(block) for block in judged]
        for rank in set.intersection(*map(set, found)):
            self.told.setdefault(rank, found[0][rank])
            self._span.setdefault(rank, span)
        for rank in [rank for rank, its in self._span.items() if its == span]:
            if all(rank in block and lag(rank, block) < LEAST_SHARE for block in judged):
                del self.told[rank], self._span[rank]


def lag(rank: int, paces: Mapping[int, PaceOf]) -> float:
    """By how much of a step a rank is behind the usual one of the others."""
    others = [parts(pace).wait for other, pace in paces.items() if other != rank]
    return median(others) - parts(paces[rank]).wait if others else 0.0


def sentence(found: Behind, place: str) -> str:
    """For people: who, where, how much, and with what."""
    mine, usual = found.parts, found.usual
    what = {
        "its data loader": mine.data - usual.data,
        "computing": mine.compute - usual.compute,
        _HELD.get(found.held_by, ""): mine.held - usual.held,
    }
    most = max(what, key=lambda name: what[name])
    return (
        f"rank {found.rank} ({place}) keeps the others waiting for {found.share:.0%} of each step "
        f"({found.step_s:.3g} s), most of it with {most}. Its time: data {mine.data:.0%}, compute {mine.compute:.0%}, "
        f"held up {mine.held:.0%}, waiting {mine.wait:.0%}; the others': data {usual.data:.0%}, compute "
        f"{usual.compute:.0%}, held up {usual.held:.0%}, waiting {usual.wait:.0%}."
    )


_HELD = {
    "queued": "waiting for a free processor",
    "stopped": "being stopped (SIGSTOP)",
    "disk": "waiting for a disk",
}


def worst(told: Mapping[int, Behind], limit: int) -> List[Behind]:
    """Those that cost most, by their ranks."""
    most = sorted(told.values(), key=lambda each: -each.share)[:limit]
    return sorted(most, key=lambda each: each.rank)
