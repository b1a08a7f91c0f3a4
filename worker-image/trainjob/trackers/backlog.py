"""Reports that had no room in a tracker's queue, read on the job's storage once there is. For `feed`."""

from __future__ import annotations

from trainjob.checkpoint.stores.store import Store
from trainjob.launch.handover.callbacks import Report
from trainjob.launch.outcome.reports import Follower
from trainjob.trackers.claim import Mark
from trainjob.trackers.source import mark_of


class Backlog:
    """Of one tracker and one run: reads on where it was."""

    def __init__(self, store: Store) -> None:
        self._follower = Follower(store)
        self._ahead: list[Report] = []
        """Read, and not asked for yet."""

    def after(self, before: Mark, newest: Mark, most: int) -> list[Report] | None:
        """What comes after `before`, up to `newest`, about `most` of it, in order; None: nothing can be read now. An
        empty list: what the storage has is later than that.
        """
        while True:
            if not self._ahead:
                self._ahead = self._follower.poll(newest.run, newest.attempt, final=True, most=most)
                if not self._ahead:
                    return None
            found = [report for report in self._ahead if before < mark_of(report) <= newest]
            self._ahead = [report for report in self._ahead if mark_of(report) > newest]
            if found or self._ahead:
                return found
