"""What a warm parent is started with, its start, and whether another is made after one that is gone. Called by
`starter`, for the first and for one that learns.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Optional, Sequence, Tuple

from trainjob.agent.config import KeptParent
from trainjob.agent.processes import memory, rank_command
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.warm.parent import WarmParent
from trainjob.agent.warm.reading import Reading
from trainjob.agent.warm.script import folder_of
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
        kept: Optional[KeptParent] = None,
    ) -> None:
        """As `WarmStarter` has them. `say`: why a fork did not go the warm way."""
        self._kept = kept
        self._reaper = reaper
        self._words = words
        self.reading = Reading(words, os.getcwd(), wish, modules)
        self._log = log
        self._say = say
        self._died = 0
        self.tmp = ""
        """TMPDIR of the ranks; empty: the agent's own."""

    def environment(self, local_world_size: int) -> Dict[str, str]:
        """Of the parent, as of all ranks."""
        return rank_command.environment_of_all(os.environ, self._words, local_world_size)

    def make(self, source: Source, local_world_size: int, *, hurry: bool) -> Optional[WarmParent]:
        """One that imports, `source` too; None: the command is not there yet. `hurry`: as in `Begin`. Raises
        CannotMake.
        """
        try:
            argv = rank_command.argv(self._words)
        except rank_command.CannotRun:
            return None  # it may come with the job's code; if not, the ranks' start says so
        plan = self.reading.plan()
        begin = Begin(os.getpid(), plan.modules, folder_of(self._words, os.getcwd()), plan.optional, *source, self.tmp)
        begin = begin._replace(first_to_go=memory.ends_one_alone(), hurry=hurry)
        kept, self._kept = self._kept, None
        if kept is not None:
            parent = WarmParent(self._reaper, self._log, self._say)
            try:
                parent.adopt(kept, self.environment(local_world_size), begin)
                return parent
            except OSError:
                pass  # one is made
        parent = WarmParent(self._reaper, self._log, self._say)
        try:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)
            parent.start(argv, self.environment(local_world_size), begin)
        except (rank_command.CannotRun, OSError) as error:
            raise CannotMake(f"the warm parent cannot be started: {error}") from error
        return parent

    def close(self) -> None:
        """A parent that was there and that nobody wanted ends."""
        if self._kept is not None:
            os.close(self._kept.fd)
            self._kept = None

    def why_no_other(self, lost: WarmParent) -> Optional[str]:
        """After this one, which is gone: why there is none in its place; None: there is to be one. Asked once of
        each.
        """
        why = lost.why = lost.why or "it is gone"
        if lost.refused:
            return f"the warm parent may not be forked: {why}"
        if lost.outdated:
            return None
        self._died += 1
        if lost.starved is not None:
            return f"the warm parent is gone: {lost.starved}"
        if self._died >= DEATHS:
            return f"the warm parent died {self._died} times, at last: {why}"
        return None
