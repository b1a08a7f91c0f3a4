"""What the text of a job's code says of forks: whether its ranks may be, and what is imported ahead.

Asked by `making`, and by the launcher that keeps a parent for the next job.
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from trainjob.agent.warm import choice, variables
from trainjob.agent.warm.script import Script, packages
from trainjob_api import contract


class Reading:
    """Of one command; the files are read as they are when it is asked."""

    def __init__(self, words: Sequence[str], cwd: str, wish: str, modules: Optional[Sequence[str]]) -> None:
        """`words`: the user's command. `wish`, `modules`: spec.runtime.prefork and .preload."""
        self.script = Script(words, cwd)
        self._wish = wish
        self._modules = modules

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

    def imports(self) -> Tuple[str, ...]:
        """Packages, and modules without one, that stand in its import statements; sorted."""
        return packages(self.script.texts())

    def may_learn(self) -> bool:
        """Whether what the code imports may be imported ahead. A module that reads a variable at its import would have
        read it before code that sets it: of code that nobody can read, who knows.
        """
        told, texts = self.script.told(), self.script.texts()
        return not told["sets_variables"] if told is not None else bool(texts) and not variables.sets_any(texts)
