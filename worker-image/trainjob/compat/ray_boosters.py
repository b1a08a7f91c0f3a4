"""What Ray's callbacks of libraries that boost trees have in common: when they report, and what.

`ray_xgboost` and `ray_lightgbm` are their faces.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

from trainjob.integrations import boosters
from trainjob.integrations.wishes import Wishes
from trainjob.session import calls

Evaluated = Mapping[str, Mapping[str, float]]
"""Data -> metric -> its newest value."""


class Reports:
    """One training's: the metrics after each round; the booster with each n-th, with the last, and where a planned
    change waits for a checkpoint.
    """

    def __init__(
        self,
        metrics: Union[str, Sequence[str], Mapping[str, str], None],
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Optional[Callable[[Dict[str, float]], Mapping[str, Any]]],
    ) -> None:
        wished = metrics or {}
        self._names = (
            wished
            if isinstance(wished, Mapping)
            else {name: name for name in ([wished] if isinstance(wished, str) else wished)}
        )
        """What is reported -> `<data>-<metric>`; empty: all as they are."""
        self._filename = filename
        self._frequency = frequency
        self._at_end = checkpoint_at_end
        self._processed = results_postprocessing_fn
        self._wishes = Wishes()
        self._saved = -1
        self._last: Mapping[str, Any] = {}

    def after_round(self, round_: int, evaluated: Evaluated, save: Callable[[str], Any], is_last: bool = False) -> None:
        """`round_` counts from 1 in this call of train(); `is_last`: as far as the library knows by then."""
        self._last = self._metrics(evaluated)
        wished = self._wishes.heard() or (is_last and self._at_end)
        if wished or (self._frequency > 0 and round_ % self._frequency == 0):
            self._report(round_, save)
        else:
            calls.report(dict(self._last))

    def after_training(self, round_: int, save: Callable[[str], Any]) -> None:
        """So many rounds were done."""
        if self._at_end and round_ != self._saved:
            self._report(round_, save)

    def _metrics(self, evaluated: Evaluated) -> Mapping[str, Any]:
        found = {f"{data}-{name}": value for data, names in evaluated.items() for name, value in names.items()}
        chosen = {told: found[name] for told, name in self._names.items()} if self._names else found
        return chosen if self._processed is None else self._processed(chosen)

    def _report(self, round_: int, save: Callable[[str], Any]) -> None:
        self._saved = round_
        boosters.report_with(dict(self._last), self._filename, save)
