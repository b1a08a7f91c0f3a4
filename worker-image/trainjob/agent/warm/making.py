"""What a warm parent is started with, its start, and whether another is made after one that is gone. Called by
`starter`, for the first and for one that learns.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Optional, Sequence, Tuple

from trainjob.agent.processes import memory, rank_command
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.warm import choice, variables
from trainjob.agent.warm.parent import WarmParent
from trainjob.agent.warm.script import Script, folder_of
from trainjob_api import contract
from trainjob_api.warm_messages import Begin

Source = Tuple[str, Tuple[str, ...]]
"""The file with the list of what was learned, and the packages of it that are left out; as `Begin` has them."""
NOTHING: Source = ("", ())


DEATHS = 2
"""So many parents that died in the life of an agent are enough."""


class CannotMake(Exception):
    """There is no process for it, now at least; the text says why."""


class Maker:
    """Of one command."""

    def __init__(
        self,
        reaper: Reaper,
        words: Sequence[str],
        wish: str,
        modules: Optional[Sequence[str]],
        log: str,
        say: Callable[[str], None],
    ) -> None:
        """As `WarmStarter` has them. `say`: why a fork did not go the warm way."""
        self._reaper = reaper
        self._words = words
        self.script = Script(words, os.getcwd())
        self._wish = wish
        self._modules = modules
        self._log = log
        self._say = say
        self._died = 0
        self.tmp = ""
        """TMPDIR of the ranks; empty: the agent's own."""

    def environment(self, local_world_size: int) -> Dict[str, str]:
        """Of the parent, as of all ranks."""
        return rank_command.environment_of_all(os.environ, self._words, local_world_size)

    def doubt(self) -> Optional[str]:
        """Why ranks of the code as it is now start in new interpreters; None: they are forked."""
        told = self.script.told()
        if told is not None:
            return told["doubt"] if self._wish == contract.PREFORK_AUTO else None
        return choice.doubt(self._wish, self.script.texts())

    def plan(self) -> choice.Plan:
        """What a parent imports for the code as it is now."""
        told = self.script.told()
        if told is not None and self._modules is None:
            return choice.Plan(tuple(told["modules"]), True)
        return choice.plan(self._modules, self.script.texts())

    def serves(self) -> Optional[str]:
        """Why no store is served beside the ranks of the code as it is now; None: it may be."""
        told = self.script.told()
        return told["serves"] if told is not None else choice.serves(self.script.texts())

    def may_learn(self) -> bool:
        """Whether what the code imports may be imported ahead. A module that reads a variable at its import would have
        read it before code that sets it: of code that nobody can read, who knows.
        """
        told, texts = self.script.told(), self.script.texts()
        return not told["sets_variables"] if told is not None else bool(texts) and not variables.sets_any(texts)

    def make(self, source: Source, local_world_size: int) -> Optional[WarmParent]:
        """One that imports, `source` too; None: the command is not there yet. Raises CannotMake."""
        try:
            argv = rank_command.argv(self._words)
        except rank_command.CannotRun:
            return None  # it may come with the job's code; if not, the ranks' start says so
        plan = self.plan()
        parent = WarmParent(self._reaper, self._log, self._say)
        begin = Begin(os.getpid(), plan.modules, folder_of(self._words, os.getcwd()), plan.optional, *source, self.tmp)
        begin = begin._replace(first_to_go=memory.ends_one_alone())
        try:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)
            parent.start(argv, self.environment(local_world_size), begin)
        except (rank_command.CannotRun, OSError) as error:
            raise CannotMake(f"the warm parent cannot be started: {error}") from error
        return parent

    def why_no_other(self, lost: WarmParent) -> Optional[str]:
        """After this one, which is gone: why there is none in its place; None: there is to be one. Asked once of
        each.
        """
        why = lost.why = lost.why or "it is gone"
        if lost.refused:
            return f"the warm parent may not be forked: {why}"
        self._died += 1
        if lost.starved is not None:
            return f"the warm parent is gone: {lost.starved}"
        if self._died >= DEATHS:
            return f"the warm parent died {self._died} times, at last: {why}"
        return None
