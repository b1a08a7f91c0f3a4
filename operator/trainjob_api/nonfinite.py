"""NaN and infinities in metrics: JSON has no such numbers, and the moment a loss becomes one must still be seen.

One rule, here alone: where a value becomes JSON (a frame, a manifest, a row of history) it is spelled `"NaN"`,
`"Infinity"` or `"-Infinity"`; where metrics are read for people or for a score, these three words are numbers again. A
metric that is a text of just that spelling is read as the number. Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, Optional, Tuple, Union

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spelled(value: Any) -> Any:
    """The value with its numbers that JSON has not as words; everything else as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: spelled(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(item) for item in value]
    return value


def numbers(metrics: Mapping[str, Any]) -> Dict[str, Any]:
    """Metrics as they were reported: the words as numbers again, also in nested dicts and lists."""
    return {name: _number(value) for name, value in metrics.items()}


def first(metrics: Mapping[str, Any], prefix: str = "") -> Optional[Tuple[str, str]]:
    """(dotted name, word) of the first such number among metrics as they travel or as they were reported."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found = first(value, f"{prefix}{name}.")
            if found is not None:
                return found
        elif isinstance(value, float):
            if not math.isfinite(value):
                return f"{prefix}{name}", str(spelled(value))
        elif isinstance(value, str) and value in WORDS:
            return f"{prefix}{name}", value
    return None


def with_first(metrics: Mapping[str, float], name: str, word: str) -> Dict[str, float]:
    """Finite metrics, and before them the first that became no number, unless it is one again."""
    if name in metrics or word not in WORDS:
        return dict(metrics)
    return {name: WORDS[word], **metrics}


def dumps(value: Any) -> str:
    """Compact JSON that every parser reads. A value without such numbers (nearly every one) pays nothing for it."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(spelled(value), separators=(",", ":"), allow_nan=False)


def _number(value: Any) -> Any:
    if isinstance(value, str):
        found: Union[str, float] = WORDS.get(value, value)
        return found
    if isinstance(value, Mapping):
        return {name: _number(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_number(item) for item in value]
    return value
