"""Strikes ranks of a running local job by the clock of a plan, from outside, and keeps count."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from support.faults import targets
from support.faults.plan import Beat, Faults, What
from support.patience import HANG_S

_SIGNALS = {What.KILL: signal.SIGKILL, What.TERMINATE: signal.SIGTERM}


class Clockwork(threading.Thread):
    """Until the plan's blows are done, or it is told to stop. Of an attempt one rank is struck."""

    def __init__(self, plan: Faults, mark: str, job: str, reported: Callable[[], int]) -> None:
        """`reported` gives the newest attempt that has made progress."""
        super().__init__(name="clockwork", daemon=True)
        self._plan, self._mark, self._job, self._reported = plan, mark, job, reported
        self._stopped = threading.Event()
        self._mine: set[int] = set()
        self.kills: list[tuple[int, int, int]] = []
        """(attempt, rank, signal)"""

    def run(self) -> None:
        for beat in self._plan.beats():
            if self._stopped.wait(beat.pause_s):
                return
            while not self._struck(beat):
                if self._stopped.wait(0.01):
                    return

    def stop(self) -> None:
        """No blow from now on."""
        self._stopped.set()
        self.join(HANG_S)

    def _struck(self, beat: Beat) -> bool:
        victims = [rank for rank in targets.ranks(self._mark, self._job) if rank.pid not in self._mine]
        if beat.fault.rank is not None:
            victims = [rank for rank in victims if rank.rank == beat.fault.rank]
        if not victims or not (beat.anywhere or self._reported() >= victims[0].attempt):
            return False
        victim = victims[int(beat.choice * len(victims))]
        self._stopped.wait(beat.aim_s)
        try:
            os.kill(victim.pid, _SIGNALS[beat.fault.what])
        except ProcessLookupError:
            return False
        # All processes of a struck attempt go; the next blow is for the next one.
        same = {rank.pid for rank in targets.ranks(self._mark, self._job) if rank.attempt == victim.attempt}
        self._mine |= same | {victim.pid}
        self.kills.append((victim.attempt, victim.rank, int(_SIGNALS[beat.fault.what])))
        return True
