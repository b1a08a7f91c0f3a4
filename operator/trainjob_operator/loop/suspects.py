"""What the jobs of each namespace say of nodes (`trainjob_api/bad_nodes.py` has the rule), from their statuses as the
loop comes by. A new leader looks at every job, so it soon knows what the one before knew; a job that is deleted is
still remembered for the hour.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from trainjob_api.bad_nodes import FOR, BadNode, Mark, bad_nodes, marks
from trainjob_api.v1alpha1 import TrainJob


class Suspects:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._marks: defaultdict[str, dict[tuple[str, str], Mark]] = defaultdict(dict)
        """By namespace; each job's newest word of each node."""

    def look(self, job: TrainJob, now: datetime) -> None:
        """A job as it stands."""
        namespace, name = job.key
        for mark in marks(job):
            if mark.at > now - FOR:
                known = self._marks[namespace].get((mark.node, name))
                if known is None or known.at < mark.at:
                    self._marks[namespace][mark.node, name] = mark

    def bad(self, namespace: str, now: datetime) -> tuple[BadNode, ...]:
        """From which nodes new pods keep away."""
        if namespace not in self._marks:
            return ()
        told = {key: mark for key, mark in self._marks[namespace].items() if mark.at > now - FOR}
        if told:
            self._marks[namespace] = told
        else:
            del self._marks[namespace]
        return bad_nodes(told.values(), now)
