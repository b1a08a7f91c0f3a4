"""How the ranks of an attempt were started, and why not as forks: for the worker's log, each reason once, and for
status. Kept by `starter`.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

from trainjob_api.contract import ForksReport

SHOWN = 64
"""Packages that are told."""


class Account:
    """One per agent."""

    def __init__(self, say: Callable[[str], None], verbose: bool = False) -> None:
        """`say`: a line of the worker's log. `verbose`: remarks are wanted too."""
        self._print = say
        self._verbose = verbose
        self._said: List[str] = []
        self.standing: Optional[str] = None
        """Why no rank is forked, now and later."""
        self._why: Optional[str] = None
        """Why one of this attempt was not."""
        self._plainly = 0
        self.forked = 0
        """Ranks of this attempt that were started as forks."""

    def begin(self) -> None:
        """An attempt begins."""
        self.forked, self._plainly, self._why = 0, 0, None

    def started(self, fork: bool) -> None:
        """One more rank of it."""
        self.forked += fork
        self._plainly += not fork
        if not fork and self._why is not None:
            self.say(self._why)

    def note(self, why: str) -> None:
        """A fork was refused: said where a rank starts without one."""
        self._why = why

    def say(self, why: str) -> None:
        """Ranks are not forked."""
        self._why = why
        self.tell(f"ranks start in a new interpreter: {why}")

    def tell(self, text: str) -> None:
        """Of something else; once."""
        if text not in self._said:
            self._said.append(text)
            self._print(text)

    def remark(self, text: str) -> None:
        """What changes nothing for a user: where the log is verbose."""
        if self._verbose:
            self.tell(text)

    def give_up(self, why: str) -> None:
        """No rank is forked from now on."""
        self.standing = why
        self.say(why)

    def report(self, learned: Sequence[str], modules: str) -> ForksReport:
        """For status. `learned`: packages that are imported ahead since the script imported them; `modules`: what of
        them others would import.
        """
        why = self.standing or self._why or "no fork was ready in time"
        report: ForksReport = {
            "ranks": self.forked,
            "why": why if self._plainly else None,
            "learned": list(learned[:SHOWN]),
        }
        if modules:
            report["modules"] = modules
        return report
