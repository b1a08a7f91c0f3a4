"""What the loop remembers of jobs from one turn to the next, in one place. Nothing of it decides by itself: losing it
costs reads, a sentence that is logged again, and one more try of what was refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from trainjob_operator.cluster import JobKey
from trainjob_operator.loop.authority import Authority
from trainjob_operator.loop.creates import Creates
from trainjob_operator.loop.known import Known
from trainjob_operator.loop.leaving import Leaving
from trainjob_operator.loop.neighbourhood import Neighbourhood
from trainjob_operator.loop.removals import Removals
from trainjob_operator.loop.suspects import Suspects


@dataclass
class Remembered:
    """Of all jobs, and of their nodes and namespaces."""

    known: Known = field(default_factory=Known)
    leaving: Leaving = field(default_factory=Leaving)
    neighbourhood: Neighbourhood = field(default_factory=Neighbourhood)
    suspects: Suspects = field(default_factory=Suspects)
    authority: Authority = field(default_factory=Authority)
    said: dict[JobKey, str] = field(default_factory=dict)
    """The sentence that was logged last."""
    strangers: dict[JobKey, frozenset[str]] = field(default_factory=dict)
    """UIDs of pods that were told to trust a lost authority."""
    creates: defaultdict[JobKey, Creates] = field(default_factory=lambda: defaultdict(Creates))
    removals: defaultdict[JobKey, Removals] = field(default_factory=lambda: defaultdict(Removals))
    _uids: dict[JobKey, str] = field(default_factory=dict)
    """Of the jobs that all this is about."""

    def meet(self, key: JobKey, uid: str) -> None:
        """This job is about to be looked at: what was refused to one that bore the name before says nothing of it."""
        if self._uids.setdefault(key, uid) != uid:
            self._forget(key)
            self._uids[key] = uid

    def leave(self, key: JobKey) -> None:
        """The job is another installation's to look after."""
        self.known.leave(key)
        self.neighbourhood.forget(key)

    def forget(self, key: JobKey) -> None:
        """There is no such job."""
        self._forget(key)
        self._uids.pop(key, None)
        self.said.pop(key, None)
        self.known.gone(key)
        self.neighbourhood.forget(key)

    def _forget(self, key: JobKey) -> None:
        for jobs in (self.strangers, self.creates, self.removals):
            jobs.pop(key, None)
        self.authority.forget(key)
