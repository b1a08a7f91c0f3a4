"""How the jobs of each namespace stand, as their last turns found, and who is to look again when that changes.

Kept by the reconciler. It is memory only: a leader that begins knows of nobody, makes nobody give anything, and learns
from the first turn of each job. What a job has given stands in its status.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import Standing


class Neighbourhood:
    """Of all namespaces."""

    def __init__(self) -> None:
        self._standings: defaultdict[str, dict[str, Standing]] = defaultdict(dict)

    def of(self, key: JobKey) -> tuple[Standing, ...]:
        """The other jobs of its namespace."""
        namespace, name = key
        return tuple(standing for other, standing in self._standings[namespace].items() if other != name)

    def note(self, key: JobKey, standing: Standing | None) -> list[JobKey]:
        """As its turn found it (None: it counts no more); the jobs that look again."""
        namespace, name = key
        jobs = self._standings[namespace]
        before = jobs.pop(name, None)
        if standing is not None:
            if before is not None and before.uid == standing.uid and standing.priority is None:
                # Pods that were given back tell nothing: it is as urgent as before.
                standing = replace(standing, priority=before.priority)
            jobs[name] = standing
        if standing == before:
            return []
        asked = {name for name, job in jobs.items() if _may_answer(job, before, standing)}
        return sorted((namespace, other) for other in asked - {name})

    def forget(self, key: JobKey) -> None:
        """There is no such job."""
        self._standings[key[0]].pop(key[1], None)


def _may_answer(job: Standing, before: Standing | None, now: Standing | None) -> bool:
    """Whether a job is concerned by what has changed of another: it may give, gave, or was given."""
    changed = [standing for standing in (before, now) if standing is not None]
    asks = any(standing.lacks for standing in changed)
    gives = any(standing.gave_to == job.uid for standing in changed)
    settles = any(standing.uid == job.gave_to for standing in changed)
    return (asks and bool(job.above or job.wants)) or gives or settles
