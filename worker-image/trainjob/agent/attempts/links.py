"""Rank 0's agent: the connections of the attempt's members, and who of them cannot be reached.

Made by `leader`. Its own member has none: it is told by a plain call.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Dict, Mapping, Optional, Set

from trainjob.agent.wire import pulse
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_leader import FROM_LEADER, FromLeader

LOST_S = 1.0
"""How long a member may be without a connection before it counts as a lost peer."""


class Links:
    """By index."""

    def __init__(self, own_member: Callable[[FromLeader], None], changed: Callable[[bool], None]) -> None:
        self._own_member = own_member
        self._changed = changed
        self._links: Dict[int, FrameConnection] = {}
        self._timers: Dict[int, asyncio.TimerHandle] = {}
        self._closed = False
        self.left: Set[int] = set()
        """Members that said good-bye: their agents end."""
        self._lost: Dict[int, float] = {}
        """Members that had joined and have no connection: since when, by the loop's time."""
        self._silent: Dict[int, float] = {}
        """Members whose connection stands and that have not been heard: since when."""
        self._loop = asyncio.get_running_loop()
        self._pulse = pulse.Pulse(self._loop.time())
        self._beating = self._loop.call_later(pulse.BEAT_S, self._beat)

    @property
    def unreached(self) -> Mapping[int, float]:
        """Lost and silent ones."""
        return {**self._silent, **self._lost}

    @property
    def gone(self) -> Set[int]:
        """Whose shares nobody need wait for."""
        return {*self._lost, *self.left}

    def attach(self, index: int, connection: FrameConnection) -> None:
        """A member's connection is up."""
        self._silent.pop(index, None)
        older = self._links.get(index)
        self._links[index] = connection
        if older is not None:
            older.close()

    def detach(self, index: int, connection: FrameConnection) -> bool:
        """A connection is gone; whether it was the member's."""
        if self._closed or self._links.get(index) is not connection:
            return False
        del self._links[index]
        self._silent.pop(index, None)
        self._timers[index] = self._loop.call_later(LOST_S, self._count_lost, index)
        return True

    def back(self, index: int) -> bool:
        """A member asks to join, over whichever connection; whether it was lost."""
        timer = self._timers.pop(index, None)
        if timer is not None:
            timer.cancel()
        self.left.discard(index)
        return self._lost.pop(index, None) is not None

    def bye(self, index: int) -> None:
        """A member leaves in good order."""
        self._links.pop(index, None)
        self.left.add(index)

    def tell(self, index: Optional[int], word: FromLeader) -> None:
        """To one member, or to all (None): encoded once."""
        self.tell_each(None if index is None else (index,), word)

    def tell_each(self, indices: Optional[tuple[int, ...]], word: FromLeader) -> None:
        """To these members, or to all (None): encoded once."""
        links = list(self._links.values()) if indices is None else [self._links[i] for i in indices if i in self._links]
        frame = FROM_LEADER.encode(word) if links else b""
        for link in links:
            link.send_frame(frame)
        if indices is None or 0 in indices:
            self._own_member(word)

    def close(self) -> None:
        """The attempt is over."""
        self._closed = True
        self._beating.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for link in list(self._links.values()):
            link.close()

    def _count_lost(self, index: int) -> None:
        self._lost[index] = self._loop.time() - LOST_S
        self._changed(True)

    def _beat(self) -> None:
        """Say to all members that we live, and look who of them does."""
        before = self._silent
        self._beating = self._loop.call_later(pulse.BEAT_S, self._beat)
        self._pulse.tick(self._loop.time())
        self._silent = {}
        for index, link in list(self._links.items()):
            link.send_if_quiet(pulse.FRAME, pulse.BEAT_S / 2)
            since = self._pulse.silent_since(link.heard_at)
            if since is not None:
                self._silent[index] = since
        if self._silent.keys() != before.keys():
            self._changed(True)
