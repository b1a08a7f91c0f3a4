"""The forks of a warm parent that wait to be the ranks of a start. Owned by `starter`, which says when they are made,
and of which parent.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.parent import WarmParent
from trainjob_api.warm_messages import Order

GATE_S = 5.0
"""From the request: how long they are waited for."""

Refused = Callable[[str], None]
"""Told why there is no fork."""


class Gates:
    """Those of one agent."""

    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self._there: List[Gate] = []

    def __bool__(self) -> bool:
        return bool(self._there)

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._there)

    @property
    def standing(self) -> int:
        """So many are there."""
        return sum(gate.stands for gate in self._there)

    def fill(self, count: int, parent: WarmParent) -> None:
        """Have so many, of this parent where there are fewer."""
        while len(self._there) < count:
            gate = forked(parent, self._refused)
            if gate is None:
                return
            self._there.append(gate)

    def sift(self, *, come: bool) -> None:
        """Those stay that stand; `come`: and those that will, as far as is known."""
        for gate in self._there:
            if not gate.stands and not (come and not gate.waits.done()):
                gate.drop()
        self._there = [gate for gate in self._there if gate.stands or (come and not gate.waits.done())]

    async def stand(self) -> None:
        """Until all do, as long as that is worth while."""
        waiting = [gate.waits for gate in self._there if not gate.waits.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=GATE_S)

    def go(self, argv: Sequence[str], env: Dict[str, str], front: Tuple[str, ...], output: int) -> Optional[int]:
        """The process that becomes this rank; None: none is left. The rest as `Order` has it."""
        order = Order(tuple(argv), tuple(argv[list(argv).index("--") + 1 :]), env, front)
        while self._there:
            gate = self._there.pop(0)
            if gate.go(order, output):
                return gate.pid
            gate.drop()
        return None

    def drop(self) -> None:
        """They are not needed any more."""
        for gate in self._there:
            gate.drop()
        self._there = []


def forked(parent: WarmParent, refused: Refused) -> Optional[Gate]:
    """One to be; None: there is none for the moment."""
    try:
        return parent.fork(refused)
    except OSError:
        return None  # no descriptors left, for the moment


async def single(parent: WarmParent, refused: Refused) -> Optional[Gate]:
    """One that stands, for something else than a rank. May be cancelled."""
    gate = forked(parent, refused)
    if gate is None:
        return None
    try:
        await asyncio.wait([gate.waits], timeout=GATE_S)
    except BaseException:
        gate.drop()  # also one that has just come: nobody else knows of it
        raise
    if gate.stands:
        return gate
    gate.drop()
    return None
