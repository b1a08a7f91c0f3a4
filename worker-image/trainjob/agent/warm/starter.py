"""Starts ranks as forks of the warm parent, and plainly where that is not to be had. One per agent.

The parent is begun as soon as the code that the agent will run is there, while it still waits for the others; gates
are made while the join goes on, and a moment after a start those of the next one, so that whatever breaks finds them
there. What the ranks' script turns out to import is imported by another parent beside the training, which takes its
place (`learning`). A start waits for the parent as long as it imports (the ranks would import the same, each for
itself), but no longer than PATIENCE_S. A parent that died is made once more. Whatever else is in the way is said once,
and the ranks start plainly.
"""

from __future__ import annotations

import asyncio
import os
from typing import Callable, Dict, Optional, Sequence

from trainjob.agent.config import KeptParent
from trainjob.agent.processes import accelerators, memory
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.processes.starter import PlainStarter
from trainjob.agent.warm import choice, gates
from trainjob.agent.warm.account import Account
from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.gates import Gates
from trainjob.agent.warm.learning import Learner
from trainjob.agent.warm.making import NOTHING, CannotMake, Maker, Source
from trainjob.agent.warm.parent import WarmParent
from trainjob.agent.warm.stores import Stores
from trainjob_api import contract
from trainjob_api.contract import ForksReport

PATIENCE_S = 60.0
"""From the parent's start: how long ranks wait for it."""
WHY_S = 1.0
"""From the end of the parent's line: how long a start waits to know of what it died."""
SPARE_S = 1.0
"""From a start until the forks of the next one are made: the first steps need the processor more."""


class WarmStarter:
    """`begin`, then for each attempt `prepare`, `start`."""

    def __init__(
        self,
        reaper: Reaper,
        console: Console,
        words: Sequence[str],
        local_world_size: int,
        wish: str,
        modules: Optional[Sequence[str]],
        log: str,
        learn: str = "",
        kept: Optional[KeptParent] = None,
        on_warm: Callable[[], None] = lambda: None,
    ) -> None:
        """`words`: the user's command. `local_world_size`: of its ranks, as far as is known yet. `wish`, `modules`:
        spec.runtime.prefork and .preload. `log`: a path. `learn`: one where a rank may list what its script imports;
        empty: nothing is learned. `kept`: a parent that is there already. `on_warm`: `warming` is over.
        """
        self._on_warm = on_warm
        self._console = console
        self._account = Account(console.say, console.verbose)
        self._words = tuple(words)
        self._local_world_size = local_world_size
        self._wish = wish
        self._plain = PlainStarter()
        self._parent: Optional[WarmParent] = None
        self._maker = Maker(reaper, self._words, wish, modules, log, self._account.say, kept)
        may_learn, path = self._maker.reading.may_learn, learn if modules is None else ""
        self._learner = Learner(path, may_learn, self._make, self._swap_in, console.say)
        self._starting = False
        """An attempt has begun whose ranks are not started yet: its gates are there, or made."""
        self._doubt: Optional[str] = None
        """Why the ranks of this attempt are not forked, by what their script says."""
        self._environ: Dict[str, str] = {}
        self._gates = Gates(self._account.note)
        self._count = 0
        """Ranks of an attempt here."""
        self._patience: Optional[asyncio.TimerHandle] = None
        """When nobody waits for the parent any more."""
        self._next: Optional[asyncio.TimerHandle] = None
        """Makes the forks of the next start."""
        self.stores = Stores(self._for_store, self._no_store)

    @property
    def parent(self) -> Optional[WarmParent]:
        """The one that is forked from now; None: there is none."""
        return self._parent

    @property
    def warming(self) -> bool:
        """The parent is being made, and is still waited for."""
        parent = self._parent
        return parent is not None and not parent.ready.done() and parent.age_s < PATIENCE_S

    @property
    def forked(self) -> int:
        """Ranks of this attempt that were started as forks."""
        return self._account.forked

    # -- before the ranks start ----------------------------------------------------------------------------------------

    def begin(self, tmp: str = "", code_is_here: bool = True) -> None:
        """Start the parent, if there is to be one. Called when the agent starts; never raises. `tmp`: TMPDIR of the
        ranks, which is there; empty: the agent's own. `code_is_here`: else `warm_up` follows.
        """
        self._maker.tmp = tmp
        place = choice.Place(accelerators.untried(accelerators.names(), os.environ), memory.room())
        self._account.standing = choice.why_not(self._wish, self._words, place)
        if code_is_here:
            self.warm_up()

    def warm_up(self) -> None:
        """The code is there (now): have a parent, if there is to be one and there is none."""
        if self._parent is None and self._account.standing is None and self._maker.reading.doubt() is None:
            self._begin_parent()

    def expect(self, count: int, local_world_size: int) -> None:
        """An attempt begins: have so many gates by the time its ranks start."""
        self._account.begin()
        self._take_learned()
        self._starting = True
        self._have_gates(count, local_world_size)

    def _have_gates(self, count: int, local_world_size: int) -> None:
        self._count = count
        if local_world_size != self._local_world_size:
            self._local_world_size = local_world_size
            self._renew()
        self._gates.sift(come=True)
        if self._parent is not None and self._parent.is_lost:
            self._parent_lost(self._parent)
        if self._parent is not None and self._parent.can_fork:
            self._gates.fill(count, self._parent)

    async def prepare(self, count: int) -> None:
        """Wait for the parent and its gates, as long as that is worth while. May be cancelled."""
        # Now the code is there, and as it is going to run.
        self._doubt = self._maker.reading.doubt()
        if self._doubt is not None:
            return
        if self._parent is not None and self._parent.lacks(self._maker.reading.plan()):
            self._drop()
        self.warm_up()
        parent = await self._awaited()
        if parent is None:
            return
        self._have_gates(count, self._local_world_size)
        if self._parent is not parent and self._parent is not None:
            # The one before died. That one is for the next start: this one has waited enough.
            return
        await self._gates.stand()
        if self._gates.standing < count and not parent.lives and not parent.closed:
            await self._tell_end(parent)

    async def _tell_end(self, parent: WarmParent) -> None:
        """Of one that has ended while it was to be forked. (With others there is none any more, and that is said.)"""
        await asyncio.wait([parent.gone], timeout=WHY_S)
        if self._account.standing is None:
            why = parent.why or "it has closed its line"
            # Or that was its last word: something was installed or edited.
            self._account.say(why if parent.outdated else f"the warm parent died: {why}")

    async def single(self, module: str) -> Optional[Gate]:
        """A fork for something else than a rank, of a parent that has imported this; None: there is none. May be
        cancelled.
        """
        parent = await self._awaited() if self._maker.reading.doubt() is None else None
        if parent is None or not parent.can_fork or module not in parent.modules:
            return None
        return await gates.single(parent, self._no_store)

    async def _for_store(self, module: str) -> Optional[Gate]:
        why = self._maker.reading.serves()
        if why is None:
            return await self.single(module)
        self._account.remark(f"rank 0 serves the ranks' store itself: {why}")
        return None

    def _no_store(self, why: str) -> None:
        self._account.tell(f"rank 0 serves the ranks' store itself: {why}")

    async def _awaited(self) -> Optional[WarmParent]:
        """The parent, as soon as it has imported everything, or has taken too long; None: there is none."""
        parent = self._parent
        if parent is not None and not parent.ready.done():
            await asyncio.wait([parent.ready], timeout=max(PATIENCE_S - parent.age_s, 0))
            if not parent.ready.done():
                self._account.say(f"the warm parent has not imported everything after {PATIENCE_S:g} s")
        return parent

    # -- the start -----------------------------------------------------------------------------------------------------

    def start(self, argv: Sequence[str], env: Dict[str, str], output: int) -> int:
        """As `Starter` says."""
        self._starting = False
        pid = self._fork(argv, env, output)
        self._account.started(pid is not None)
        if pid is None:
            return self._plain.start(argv, env, output)
        if self._next is not None:
            self._next.cancel()
        self._next = asyncio.get_running_loop().call_later(SPARE_S, self._make_next)
        return pid

    def _make_next(self) -> None:
        if not self._starting:
            self._take_learned()
        self._have_gates(self._count, self._local_world_size)
        self.stores.make_next()

    def report(self) -> ForksReport:
        """How the ranks of this attempt were started, for status."""
        return self._account.report(self._learner.packages, self._learner.modules)

    def _fork(self, argv: Sequence[str], env: Dict[str, str], output: int) -> Optional[int]:
        if self._doubt is not None:
            self._account.say(self._doubt)
        if self._doubt is not None or not self._gates:
            return None
        name = choice.differing(env, self._environ)
        if name is not None:
            self._account.say(f"{name} is another than the warm parent's, where it has been read")
            return None
        return self._gates.go(argv, env, self._maker.reading.script.front(), output)

    def spare_memory(self) -> None:
        """The job was out of memory: what a parent and its forks take is the ranks' from now on, unless forks are
        wanted always.
        """
        if self._wish == contract.PREFORK_AUTO and self._account.standing is None:
            self._drop()
            self.stores.close()
            self._account.give_up(choice.OUT_OF_MEMORY)

    def close(self) -> None:
        """No parent, no gate."""
        for timer in (self._next, self._patience):
            if timer is not None:
                timer.cancel()
        self.stores.close()
        self._drop()
        self._maker.close()

    def _drop(self) -> None:
        self._gates.drop()
        if self._parent is not None:
            self._parent.close()
        self._parent = None
        self._learner.drop()

    # -- the parent ----------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Another, if the ranks' environment is another now."""
        if self._parent is None or self._maker.environment(self._local_world_size) == self._environ:
            return
        self._drop()
        self._begin_parent()

    def _begin_parent(self) -> None:
        try:
            parent = self._make(self._learner.source())
        except CannotMake as error:
            self._give_up(str(error))
            return
        if parent is None:
            return
        self._parent, self._environ = parent, parent.environ
        self._watch(parent)
        parent.ready.add_done_callback(lambda ready: self._is_ready(parent))
        if self._patience is not None:
            self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._enough, parent)

    def _make(self, source: Source) -> Optional[WarmParent]:
        """Raises CannotMake."""
        trains = self._count > 0 and not self._starting
        return self._maker.make(source, self._local_world_size, hurry=not trains)

    def _enough(self, parent: WarmParent) -> None:
        if parent is not self._parent or parent.ready.done():
            return
        if parent.learns:
            parent.why = f"the imports are not done after {PATIENCE_S:g} s"
            parent.close()  # another comes, without what others have named: it is not waited for here in vain again
        else:
            self._on_warm()

    def _is_ready(self, parent: WarmParent) -> None:
        if parent.missing and parent is self._parent:
            names = ", ".join(parent.missing)
            self._account.tell(f"imports nothing of that: spec.runtime.preload names what is not installed: {names}")
        if self._parent is parent and parent.lives and parent.learns:
            self._learner.is_there(parent)
        if not self.warming:
            self._on_warm()

    def _watch(self, parent: WarmParent) -> None:
        """Another takes its place as soon as it is gone: the next start is not to wait for that."""
        parent.gone.add_done_callback(lambda gone: self._is_gone(parent))

    def _is_gone(self, parent: WarmParent) -> None:
        if parent is self._parent:
            self._parent_lost(parent)

    def _parent_lost(self, parent: WarmParent) -> None:
        self._parent = None
        self._gates.sift(come=False)
        if parent.learns and not parent.can_fork and parent.starved is None:
            self._learner.failed(parent)
            self._begin_parent()
            return
        enough = self._maker.why_no_other(parent)
        if enough is not None:
            self._give_up(enough)
        else:
            self._console.say(f"the warm parent died: {parent.why}. Another one is made")
            self._begin_parent()

    def _give_up(self, why: str) -> None:
        self._parent = None
        self._account.give_up(why)

    # -- what scripts import -------------------------------------------------------------------------------------------

    @property
    def asks(self) -> str:
        """Where the first rank of an attempt is to list what its script has imported; empty: nobody asks."""
        return "" if self._parent is None else self._learner.asks

    def learn(self) -> None:
        """A rank has made its first step, and may have listed it."""
        if self._parent is not None:
            self._learner.learn()

    def hear(self, learned: str) -> None:
        """What other agents of the job have learned, as the operator passes it on: a parent imports it from its start,
        or another one beside it.
        """
        before = self._parent
        there = () if before is None else before.modules
        if self._account.standing is not None or not self._learner.hear(learned, there) or before is None:
            return  # one that begins later has it, where that may be
        if before.ready.done():
            self._learner.follow_up()
        elif self._learner.source() != NOTHING:
            before.close()
            self._begin_parent()

    def _swap_in(self) -> None:
        """A parent has learned: the next start is from it, but not one that has begun, for which all is there."""
        if self._starting:
            return
        has_gates = bool(self._gates)
        self._take_learned()
        if has_gates:  # else they come in a moment
            self._have_gates(self._count, self._local_world_size)

    def _take_learned(self) -> None:
        before, parent = self._parent, self._learner.take()
        if parent is None:
            return
        self._gates.drop()
        self._parent, self._environ = parent, parent.environ
        self._watch(parent)
        if before is not None:
            before.close()
