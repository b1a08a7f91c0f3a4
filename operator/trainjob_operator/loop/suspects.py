"""What the jobs of each namespace say of nodes (`trainjob_api/bad_nodes.py` has the rule), from their statuses as the
loop comes by. A new leader looks at every job, so it soon knows what the one before knew; a job that is deleted is
still remembered for the hour. What was said of a node before it bore its name says nothing of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from trainjob_api.bad_nodes import FOR, Mark, marks
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import NodeSeen


@dataclass(frozen=True)
class _Told:
    """A word of a job, and the moment that counts: of a clock that was ahead, when it was first heard."""

    mark: Mark
    at: datetime


class Suspects:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._told: defaultdict[str, dict[tuple[str, str], _Told]] = defaultdict(dict)
        """By namespace; each job's newest word of each node."""
        self._made_at: dict[str, datetime] = {}
        """By name: since when a node has been there. Of those that the watch tells of."""
        self._tidied_at: datetime | None = None

    def __len__(self) -> int:
        """Namespaces that anything is remembered of."""
        return len(self._told)

    def node(self, seen: NodeSeen) -> None:
        """What the watch tells of a node."""
        if seen.made_at is None:
            self._made_at.pop(seen.name, None)
        else:
            self._made_at[seen.name] = seen.made_at

    def look(self, job: TrainJob, now: datetime) -> None:
        """A job as it stands."""
        self._tidy(now)
        namespace, name = job.key
        for mark in marks(job, now):
            if mark.at <= now - FOR:
                continue
            known = self._told[namespace].get((mark.node, name))
            if known is None or (known.mark != mark and known.at < mark.at):
                self._told[namespace][mark.node, name] = _Told(mark, min(mark.at, now))

    def told(self, namespace: str, now: datetime) -> tuple[Mark, ...]:
        """What counts of it now."""
        return tuple(
            told.mark._replace(at=told.at)
            for (node, _), told in self._told.get(namespace, {}).items()
            if told.at > now - FOR and (node not in self._made_at or told.at > self._made_at[node])
        )

    def _tidy(self, now: datetime) -> None:
        """Once an hour: forget what counts no more, of namespaces too that no job is left in. Not what a clock that was
        ahead dated: heard again, it would count for another hour.
        """
        if self._tidied_at is not None and now < self._tidied_at + FOR:
            return
        self._tidied_at = now
        for namespace, told in list(self._told.items()):
            kept = {key: each for key, each in told.items() if max(each.at, each.mark.at) > now - FOR}
            if kept:
                self._told[namespace] = kept
            else:
                del self._told[namespace]
