"""What a worker's script imports beyond what is imported ahead at first: read from what its first rank lists, imported
by another warm parent beside the training, which then takes the first one's place. Once in the life of an agent.

Packages that turn out to be unfit are left out, a few of them; then what is there stays. Owned by `starter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Callable, List, Optional, Tuple

from trainjob.agent.processes import memory
from trainjob.agent.warm import choice
from trainjob.agent.warm.making import CannotMake, Source
from trainjob.agent.warm.parent import WarmParent

LEAST = 30
"""With fewer modules than that another parent is not worth while."""
TRIES = 4
"""Parents that are made for it, one after the other."""
LEARN_S = 600.0
"""A parent that has not imported all of it by then hangs: it imports slowly, in a quarter of the processor's time."""
OURS = "trainjob"
"""Is there anyway, and not told."""
SHOWN = 64
"""Packages that are told."""


class Learner:
    """`asks` before ranks start, `learn` when one has made its first step."""

    def __init__(
        self,
        path: str,
        make: Callable[[Source], Optional[WarmParent]],
        swap_in: Callable[[WarmParent], None],
        say: Callable[[str], None],
    ) -> None:
        """`path`: where a rank is to list what its script has imported. `make` may raise CannotMake. `swap_in`: the
        parent that has it all.
        """
        self._path = path
        self._make = make
        self._swap_in = swap_in
        self._say = say
        self._coming: Optional[WarmParent] = None
        self._clock: Optional[asyncio.TimerHandle] = None
        self._listed: List[str] = []
        self._without: List[str] = []
        self._tries = 0
        self._over = False
        self.packages: Tuple[str, ...] = ()
        """What the parent that is forked from has beyond the first; empty: nothing (yet)."""
        with contextlib.suppress(OSError):
            os.unlink(path)  # another agent's, whose container was started anew

    @property
    def asks(self) -> str:
        """Where the next rank is to list it; empty: nobody asks any more."""
        return "" if self._over else self._path

    @property
    def source(self) -> Source:
        """For a parent that is to have it."""
        return self._path, tuple(self._without)

    def learn(self) -> None:
        """A list may be there. One that is not worth a parent is forgotten: a later rank may import more."""
        if self._over or self._coming is not None or not self._take():
            return
        why = choice.why_not_learn(memory.room())
        if why is None:
            self._make_one()
        else:
            self._give_up(why)

    def drop(self) -> None:
        """The parent that is being made is not needed, or would have another environment than the ranks have now."""
        coming = self._taken()
        if coming is not None:
            coming.close()

    def _taken(self) -> Optional[WarmParent]:
        """The parent that is being made: it is not waited for any more."""
        if self._clock is not None:
            self._clock.cancel()
        coming, self._coming = self._coming, None
        return coming

    def _take(self) -> bool:
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return False
        if not isinstance(found, list) or len(found) < LEAST:
            os.unlink(self._path)
            return False
        self._listed = list(dict.fromkeys(str(name).partition(".")[0] for name in found))
        return True

    def _make_one(self) -> None:
        self._tries += 1
        try:
            parent = self._make(self.source)
        except CannotMake as error:
            self._give_up(str(error))
            return
        if parent is not None:
            made = self._coming = parent
            self._clock = asyncio.get_running_loop().call_later(LEARN_S, self._too_long)
            parent.ready.add_done_callback(lambda ready: self._is_ready(made))

    def _too_long(self) -> None:
        self.drop()
        self._give_up(f"the imports are not done after {LEARN_S:g} s")

    def _is_ready(self, parent: WarmParent) -> None:
        if parent is not self._coming:
            return
        self._taken()
        if parent.lives:
            self._over = True
            self.packages = tuple(name for name in self._listed if name not in (*self._without, OURS))
            self._swap_in(parent)
            first, more = self.packages[:6], len(self.packages) - 6
            words = ", ".join(first) + (f" and {more} more" if more > 0 else "")
            self._say(f"from the next start on these are imported ahead: {words}")
        elif parent.package and self._tries < TRIES:
            self._without.append(parent.package)
            self._say(f"{parent.package} is not imported ahead: {parent.why}")
            self._make_one()
        else:
            self._give_up(parent.why or "it is gone")

    def _give_up(self, why: str) -> None:
        self._over = True
        self._say(f"what the script imports is not imported ahead: {why}")
