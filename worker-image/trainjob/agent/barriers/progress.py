"""How far the run is, as rank 0's agent reports it: the newest step, epoch and metrics, and the first that is no
number. Pure.

Fed by `collectives`: rows of log(), and what rank 0 gives to report().
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from trainjob.agent.pace.steps import Steps
from trainjob.checkpoint.records import shown
from trainjob_api import contract, nonfinite
from trainjob_api.typed import Object

COUNTERS = ("step", "total_steps", "epoch")


class Progress:
    """One attempt's. `base`: the position that it resumed from."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._steps = Steps()
        self.report: contract.ProgressReport = {
            "position": base,
            "step": None,
            "total_steps": None,
            "epoch": None,
            "metrics": {},
            "time": 0.0,
        }

    @property
    def position(self) -> int:
        """Calls of report() since the run's beginning."""
        return self.report["position"]

    def reported(self, index: int, row: Object, time: float) -> None:
        """The index-th report() of this attempt is released."""
        self.seen(row.get("metrics") or {}, row, time)  # first: of a NaN the reports before it are told
        self.report["position"] = self._base + index

    def seen(self, metrics: Mapping[str, Any], counters: Mapping[str, Optional[int]], time: float) -> None:
        """What rank 0 says, with or without a position."""
        for name in COUNTERS:
            if counters.get(name) is not None:
                self.report[name] = counters[name]  # type: ignore[literal-required]
        self.report["metrics"] = shown.metrics({**self.report["metrics"], **metrics})
        self.report["time"] = time
        self._steps.seen(time, counters.get("step"))
        self.report["seconds_per_step"] = self._steps.seconds_per_step
        self._watch_for_nan(metrics, counters.get("step"))

    def _watch_for_nan(self, metrics: Mapping[str, Any], step: Optional[int]) -> None:
        """The first metric that is no number any more is kept for those who look on, and counted."""
        found = nonfinite.first(metrics)
        if found is None:
            return
        seen = self.report.get("non_finite")
        if seen is not None:
            self.report["non_finite"] = {**seen, "count": seen["count"] + 1}
            return
        self.report["non_finite"] = {
            "metric": found[0],
            "value": found[1],
            "step": step,
            "position": self.position,
            "count": 1,
        }
