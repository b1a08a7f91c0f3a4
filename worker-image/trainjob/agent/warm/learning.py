"""What a worker's script imports beyond what is imported ahead at first: read from what its first rank lists, imported
by another warm parent beside the training, which then takes the first one's place. Once in the life of an agent.

An agent whose ranks have not run yet is told what others of its job have learned, or finds what the agent before it has
left in the same pod: the parent that it begins with imports that too, and one that is ready is followed by another.
Packages that turn out to be unfit are left out, a few of them; then what is there stays. Owned by `starter`.
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
SHOWN = 64
"""Packages that are told."""


class Learner:
    """`asks` before ranks start, `learn` when one has made its first step; `hear` what others have learned."""

    def __init__(
        self,
        path: str,
        make: Callable[[Source], Optional[WarmParent]],
        swap_in: Callable[[WarmParent], None],
        say: Callable[[str], None],
    ) -> None:
        """`path`: where a rank is to list what its script has imported; what was learned is kept beside it. `make` may
        raise CannotMake. `swap_in`: the parent that has it all.
        """
        self._path = path
        self._kept = os.path.join(os.path.dirname(path), contract.LEARNED)
        self._make = make
        self._swap_in = swap_in
        self._say = say
        self._coming: Optional[WarmParent] = None
        self._clock: Optional[asyncio.TimerHandle] = None
        self._file = ""
        """What parents import from now on; empty: nothing is known, or it was of no use."""
        self._listed: List[str] = []
        self._without: List[str] = []
        self._tries = 0
        self._over = False
        self.packages: Tuple[str, ...] = ()
        """What the parent that is forked from has beyond the first; empty: nothing (yet)."""
        self.modules = ""
        """What another agent imports to have the same, as `module_names` has it."""
        with contextlib.suppress(OSError):
            os.unlink(path)  # another agent's, whose container was started anew
        self._know(_read(self._kept))

    @property
    def asks(self) -> str:
        """Where the next rank is to list it; empty: nobody asks any more."""
        return "" if self._over or self._file else self._path

    @property
    def source(self) -> Source:
        """For a parent that begins now."""
        return (self._file, tuple(self._without)) if self._file else NOTHING

    def hear(self, text: str, there: Sequence[str]) -> bool:
        """What others of this job have learned, as `module_names` has it. Whether that is news here, where the parent
        has imported these packages.
        """
        names = module_names.names_in(text)
        if self._over or self._file or {*_packages(names)} <= {*there}:
            return False
        why = choice.why_not_learn(memory.room())
        if why is not None:
            self._say(f"what other workers have learned is not imported ahead: {why}")
            self._over = True
            return False
        try:
            _write(self._kept, names)
        except OSError:
            return False  # it is learned here, as if nobody had spoken
        self._know(names)
        return True

    def follow_up(self) -> None:
        """On a parent that is ready: another that has what was heard."""
        self._make_one()

    def _know(self, names: List[str]) -> None:
        if names:
            self._file, self._listed = self._kept, _packages(names)

    def is_there(self, parent: WarmParent) -> None:
        """A parent of `source` has imported it all."""
        if self._file == self._kept and not parent.learned:
            self._forget()  # nothing of what others named: what its own ranks import may still be learned
            return
        was_known, self._over = self._over, True
        there = {*parent.modules} - {*self._without, OURS}
        self.packages = tuple(name for name in self._listed if name in there)
        self.modules = parent.learned
        with contextlib.suppress(OSError):
            _write(self._kept, module_names.names_in(parent.learned))
        if not was_known:
            first, more = self.packages[:6], len(self.packages) - 6
            words = ", ".join(first) + (f" and {more} more" if more > 0 else "")
            self._say(f"from the next start on these are imported ahead: {words}")

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
        self._file = self.modules = ""
        self.packages = ()
        with contextlib.suppress(OSError):
            os.unlink(self._kept)

    def learn(self) -> None:
        """A list may be there. One that is not worth a parent is forgotten: a later rank may import more."""
        if self._over or self._file or not self._take():
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
            self._file = ""

    def _taken(self) -> Optional[WarmParent]:
        """The parent that is being made: it is not waited for any more."""
        if self._clock is not None:
            self._clock.cancel()
        coming, self._coming = self._coming, None
        return coming

    def _take(self) -> bool:
        if not os.path.exists(self._path):
            return False
        found = _read(self._path)
        if len(found) < LEAST:
            os.unlink(self._path)
            return False
        self._file, self._listed, self._without, self._tries = self._path, _packages(found), [], 0
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
            self.is_there(parent)
            self._swap_in(parent)
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


def _read(path: str) -> List[str]:
    """Names in such a file; empty: there is none, or it makes no sense."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _write(path: str, names: List[str]) -> None:
    """There whole, or not at all. Raises OSError."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(names, file)
    os.replace(path + ".new", path)
