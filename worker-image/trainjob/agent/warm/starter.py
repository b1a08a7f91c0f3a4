"""Starts ranks as forks of the warm parent, and plainly where that is not to be had. One per agent.

The parent is begun as soon as the agent knows what it will run, while it still waits for the others; gates are made
while the join goes on. A start waits for the parent as long as it imports (the ranks would import the same, each for
itself), but no longer than PATIENCE_S. A parent that died is made once more. Whatever else is in the way is said once,
and the ranks start plainly.
"""

from __future__ import annotations

import asyncio
import os
from typing import Dict, List, Optional, Sequence

from trainjob.agent.processes import rank_command
from trainjob.agent.processes.output import Console
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.processes.starter import PlainStarter
from trainjob.agent.warm import choice
from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.parent import WarmParent
from trainjob_api.warm_messages import Begin, Order

PATIENCE_S = 60.0
"""From the parent's start: how long ranks wait for it."""
GATE_S = 5.0
"""From the request: how long they wait for forks of it."""
DEATHS = 2
"""So many parents that died in the life of an agent are enough."""


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
    ) -> None:
        """`words`: the user's command. `local_world_size`: of its ranks, as far as is known yet. `wish`, `modules`:
        spec.runtime.prefork and .preload. `log`: a path.
        """
        self._reaper = reaper
        self._console = console
        self._words = tuple(words)
        self._local_world_size = local_world_size
        self._wish = wish
        self._modules = modules
        self._log = log
        self._plain = PlainStarter()
        self._parent: Optional[WarmParent] = None
        self._died = 0
        self._began = 0.0
        self._environ: Dict[str, str] = {}
        self._gates: List[Gate] = []
        self._said: List[str] = []
        self.forked = 0
        """Ranks that were started as forks."""

    @property
    def parent(self) -> Optional[WarmParent]:
        """The one that is forked from now; None: there is none."""
        return self._parent

    # -- before the ranks start ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the parent, if there is to be one. Called when the agent starts; never raises."""
        if choice.why_not(self._wish, self._words, choice.devices(_device_names(), os.environ)) is None:
            self._begin_parent()

    def expect(self, count: int, local_world_size: int) -> None:
        """An attempt begins: have so many gates by the time its ranks start."""
        if local_world_size != self._local_world_size:
            self._local_world_size = local_world_size
            self._renew()
        self._gates = [gate for gate in self._gates if not gate.waits.done() or gate.stands]
        if self._parent is not None and not self._parent.lives:
            self._parent_lost(self._parent)
        if self._parent is None or not _is_true(self._parent.ready):
            return
        while len(self._gates) < count and self._parent is not None:
            gate = self._forked_from(self._parent)
            if gate is None:
                return
            self._gates.append(gate)

    async def prepare(self, count: int) -> None:
        """Wait for the parent and its gates, as long as that is worth while. May be cancelled."""
        parent = self._parent
        if parent is None:
            return
        loop = asyncio.get_running_loop()
        left = self._began + PATIENCE_S - loop.time()
        if not parent.ready.done():
            await asyncio.wait([parent.ready], timeout=max(left, 0))
            if not parent.ready.done():
                self._say(f"the warm parent has not imported everything after {PATIENCE_S:g} s")
        self.expect(count, self._local_world_size)
        if self._parent is not parent and self._parent is not None:
            # The one before died. That one is for the next start: this one has waited enough.
            return
        waiting = [gate.waits for gate in self._gates if not gate.waits.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=GATE_S)

    # -- the start -----------------------------------------------------------------------------------------------------

    def start(self, argv: Sequence[str], env: Dict[str, str], output: int) -> int:
        """As `Starter` says."""
        pid = self._fork(argv, env, output)
        return self._plain.start(argv, env, output) if pid is None else pid

    def _fork(self, argv: Sequence[str], env: Dict[str, str], output: int) -> Optional[int]:
        if not self._gates:
            return None
        name = choice.differing(env, self._environ)
        if name is not None:
            self._say(f"{name} is another than the warm parent's, where it has been read")
            return None
        at = list(argv).index("--") + 1
        order = Order(tuple(argv), tuple(argv[at:]), env)
        while self._gates:
            gate = self._gates.pop(0)
            if gate.go(order, output):
                self.forked += 1
                return gate.pid
            gate.drop()
        return None

    def close(self) -> None:
        """No parent, no gate."""
        self._drop()

    def _drop(self) -> None:
        for gate in self._gates:
            gate.drop()
        self._gates = []
        if self._parent is not None:
            self._parent.close()
            self._parent = None

    # -- the parent ----------------------------------------------------------------------------------------------------

    def _environment(self) -> Dict[str, str]:
        return rank_command.environment_of_all(os.environ, self._words, self._local_world_size)

    def _renew(self) -> None:
        """Another, if the ranks' environment is another now."""
        if self._parent is None or self._environment() == self._environ:
            return
        self._drop()
        self._begin_parent()

    def _begin_parent(self) -> None:
        try:
            argv = rank_command.argv(self._words)
        except rank_command.CannotRun:
            return  # it may come with the job's code; if not, the ranks' start says so
        environ = self._environ = self._environment()
        cwd = os.getcwd()
        plan = choice.plan(self._modules, self._words, cwd)
        parent = WarmParent(self._reaper, self._log, self._say)
        folder = choice.folder_of(self._words, cwd)
        try:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)
            parent.start(argv, environ, Begin(os.getpid(), plan.modules, folder, plan.optional))
        except (rank_command.CannotRun, OSError) as error:
            self._give_up(f"the warm parent cannot be started: {error}")
            return
        self._parent = parent
        self._began = asyncio.get_running_loop().time()
        parent.ready.add_done_callback(lambda ready: self._is_ready(parent))

    def _is_ready(self, parent: WarmParent) -> None:
        if parent.missing and parent is self._parent:
            names = ", ".join(parent.missing)
            self._say(f"spec.runtime.preload names what is not installed: {names}", "imports nothing of that")
        if self._parent is parent and not parent.lives:
            self._parent_lost(parent)

    def _parent_lost(self, parent: WarmParent) -> None:
        self._parent = None
        for gate in self._gates:
            if not gate.stands:
                gate.drop()
        self._gates = [gate for gate in self._gates if gate.stands]
        why = parent.why or "it is gone"
        if parent.refused:
            self._give_up(f"the warm parent may not be forked: {why}")
            return
        self._died += 1
        if self._died >= DEATHS:
            self._give_up(f"the warm parent died {self._died} times, at last: {why}")
        else:
            self._console.say(f"the warm parent died: {why}. Another one is made")
            self._begin_parent()

    def _forked_from(self, parent: WarmParent) -> Optional[Gate]:
        try:
            return parent.fork()
        except OSError:
            return None  # no descriptors left, for the moment

    def _give_up(self, why: str) -> None:
        self._parent = None
        self._say(why)

    def _say(self, why: str, what: str = "ranks start in a new interpreter") -> None:
        if why not in self._said:
            self._said.append(why)
            self._console.say(f"{what}: {why}")


def _is_true(future: asyncio.Future[bool]) -> bool:
    return future.done() and not future.cancelled() and future.result()


def _device_names() -> List[str]:
    try:
        return os.listdir("/dev")
    except OSError:
        return []
