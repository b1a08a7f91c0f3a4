"""What a worker's script imports beyond what is imported ahead at first: read from what its first rank lists, imported
by another warm parent beside the training, which then takes the first one's place. Once in the life of an agent.

An agent whose ranks have not run yet is told what others of its job have learned, or finds what the agent before it has
left in the same pod: the parent that it begins with imports that too, and one that is ready is followed by another.
Packages that turn out to be unfit are left out, a few of them; then what is there stays. Where memory is short nothing
of it is imported, whoever has learned it. Owned by `starter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Callable, List, Optional, Sequence, Tuple

from trainjob.agent.processes import memory
from trainjob.agent.warm import choice
from trainjob.agent.warm.making import NOTHING, CannotMake, Source
from trainjob.agent.warm.parent import WarmParent
from trainjob_api import contract, module_names

LEAST = 30
"""With fewer modules than that another parent is not worth while."""
TRIES = 4
"""Parents that are made for it, one after the other."""
LEARN_S = 600.0
"""A parent that has not imported all of it by then hangs: it imports slowly, in a quarter of the processor's time."""
OURS = "trainjob"
"""Is there anyway, and not told."""


class Learner:
    """`asks` before ranks start, `learn` when one has made its first step; `hear` what others have learned."""

    def __init__(
        self,
        path: str,
        may: Callable[[], bool],
        make: Callable[[Source], Optional[WarmParent]],
        swap_in: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`path`: where a rank is to list what its script has imported; what was learned is kept beside it. Empty:
        nothing is learned. `may`: whether that may be imported ahead for the code as it is now. `make` may raise
        CannotMake. `swap_in`: there is a parent that has it all, to be had by `take`.
        """
        self._path = path
        self._kept = os.path.join(os.path.dirname(path), contract.LEARNED)
        self._may = may
        self._make = make
        self._swap_in = swap_in
        self._say = say
        self._coming: Optional[WarmParent] = None
        self._waits: Optional[WarmParent] = None
        """It has imported it all, and nobody has taken it."""
        self._clock: Optional[asyncio.TimerHandle] = None
        self._file = ""
        """What parents import from now on; empty: nothing is known, or it was of no use."""
        self._names: List[str] = []
        """In it."""
        self._vain: List[List[str]] = []
        """What others have named, and was of no use here."""
        self._without: List[str] = []
        self._tries = 0
        self._over = not path
        self._is_short = False
        """Of memory, once, and that is said."""
        self.packages: Tuple[str, ...] = ()
        """What the parent that is forked from has beyond the first; empty: nothing (yet)."""
        self.modules = ""
        """What another agent imports to have the same, as `module_names` has it."""
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)  # another agent's, whose container was started anew
            self._know(self._kept, module_names.listed(self._kept))

    @property
    def asks(self) -> str:
        """Where the next rank is to list it; empty: nobody asks any more."""
        return "" if self._over or self._file or not self._may() else self._path

    def source(self) -> Source:
        """For a parent that begins now."""
        if not self._file or not self._may():
            return NOTHING
        why = choice.why_not_learn(memory.room())
        if why is None:
            return self._file, tuple(self._without)
        if not self._is_short:
            self._is_short = True
            self._say(f"what was learned is not imported ahead: {why}")
        return NOTHING

    def hear(self, text: str, there: Sequence[str]) -> bool:
        """What others of this job have learned, as `module_names` has it. Whether that is news here, where the parent
        has imported these packages.
        """
        names = module_names.names_in(text)
        if self._over or self._file or names in self._vain or {*_packages(names)} <= {*there}:
            return False
        try:
            _write(self._kept, names)
        except OSError:
            return False  # it is learned here, as if nobody had spoken
        self._know(self._kept, names)
        return True

    def follow_up(self) -> None:
        """On a parent that is ready: another that has what was heard."""
        self._make_one()

    def _know(self, path: str, names: List[str]) -> None:
        if names:
            self._file, self._names, self._without, self._tries = path, names, [], 0

    def is_there(self, parent: WarmParent) -> bool:
        """A parent of `source` has imported it all. Whether it has more than another has."""
        if not parent.learned:
            self._forget()  # of what others named: what its own ranks import may still be learned
            return False
        was_known, self._over = self._over, True
        there = {*parent.modules} - {*self._without, OURS}
        self.packages = tuple(name for name in _packages(self._names) if name in there)
        self.modules = parent.learned
        with contextlib.suppress(OSError):
            _write(self._kept, module_names.names_in(parent.learned))
        if not was_known:
            first, more = self.packages[:6], len(self.packages) - 6
            words = ", ".join(first) + (f" and {more} more" if more > 0 else "")
            self._say(f"from the next start on these are imported ahead: {words}")
        return True

    def failed(self, parent: WarmParent) -> None:
        """A parent that was begun with `source` is not to be: the next one has less to import."""
        self._tries += 1
        if parent.package and self._tries < TRIES:
            self._leave_out(parent)
            return
        self._say(f"what was learned is not imported ahead: {parent.why or 'its parent is gone'}")
        self._forget()

    def _leave_out(self, parent: WarmParent) -> None:
        self._without.append(parent.package)
        self._say(f"{parent.package} is not imported ahead: {parent.why}")

    def _forget(self) -> None:
        """It is of no use: neither to parents that are made later, nor to an agent that comes after this one."""
        if self._file == self._kept:
            self._vain.append(self._names)
        self._file = self.modules = ""
        self.packages = ()
        with contextlib.suppress(OSError):
            os.unlink(self._kept)

    def learn(self) -> None:
        """A list may be there. One that is not worth a parent is forgotten: a later rank may import more."""
        if self._over or self._file or not self._may() or not os.path.exists(self._path):
            return
        found = module_names.listed(self._path)
        if len(found) >= LEAST:
            self._know(self._path, found)
            self._make_one()
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def take(self) -> Optional[WarmParent]:
        """The parent that has it all, for once; None: there is none (any more)."""
        parent, self._waits = self._waits, None
        if parent is None or parent.lives:
            return parent
        self._give_up(parent.why or "its parent is gone")
        return None

    def drop(self) -> None:
        """The parent that is being made is not needed, or would have another environment than the ranks have now."""
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.close()
        coming = self._taken()
        if coming is not None:
            coming.close()
            self._file = ""

    def _taken(self) -> Optional[WarmParent]:
        """The parent that is being made: it is not waited for any more."""
        if self._clock is not None:
            self._clock.cancel()
        coming, self._coming = self._coming, None
        return coming

    def _make_one(self) -> None:
        source = self.source()
        if source == NOTHING:
            return
        self._tries += 1
        try:
            parent = self._make(source)
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
        if parent.lives and self.is_there(parent):
            self._waits = parent
            self._swap_in()
        elif parent.lives:
            parent.close()
        elif parent.package and self._tries < TRIES:
            self._leave_out(parent)
            self._make_one()
        else:
            self._give_up(parent.why or "it is gone")

    def _give_up(self, why: str) -> None:
        self._over = True
        self._forget()
        self._say(f"what the script imports is not imported ahead: {why}")


def _packages(names: List[str]) -> List[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _write(path: str, names: List[str]) -> None:
    """There whole, or not at all. Raises OSError."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(names, file)
    os.replace(path + ".new", path)
