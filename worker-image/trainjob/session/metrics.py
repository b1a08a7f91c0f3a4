"""Metrics as they travel: what a user hands to report() or log() becomes plain JSON values, or a ValueError that names
the key.

Called by `calls.report` and `calls.log` (the latter for every training step: the common types take the short way).
Knows tensors only by their `.item()`, so that it needs neither torch nor numpy.
"""

from __future__ import annotations

import numbers
from typing import Any, Dict, List, Mapping, Tuple, Union

Plain = Union[None, bool, int, float, str, List[Any], Dict[str, Any]]

_PLAIN_TYPES = frozenset((float, int, str, bool, type(None)))
_DEPTH_LIMIT = 16


def plain(metrics: Mapping[str, Any], call: str = "report") -> Dict[str, Plain]:
    """`metrics` with JSON values: numbers, strings, bools, None, and dicts and lists of these; NaN and infinities pass.

    NumPy and torch values of one element become Python numbers. Raises ValueError naming the key and the way out.
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"{call}(metrics) needs a dict such as {{'loss': 0.1}}, got {type(metrics).__name__}: {metrics!r:.80}"
        )
    out: Dict[str, Plain] = {}
    for key, value in metrics.items():
        out[key if type(key) is str else str(key)] = (
            value if type(value) in _PLAIN_TYPES else _convert(value, (key,), call)
        )
    return out


def _convert(value: Any, path: Tuple[Any, ...], call: str) -> Plain:
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(value, "item"):
        return _scalar(value, path, call)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if len(path) >= _DEPTH_LIMIT:
        raise ValueError(
            f"{_name(path, call)} is nested more than {_DEPTH_LIMIT} levels deep (does the dict contain itself?)"
        )
    if isinstance(value, Mapping):
        return {str(key): _convert(item, (*path, key), call) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert(item, (*path, index), call) for index, item in enumerate(value)]
    raise ValueError(
        f"{_name(path, call)} is of the type {type(value).__name__}: metrics are numbers, strings, bools, and dicts or "
        "lists of these"
    )


def _scalar(value: Any, path: Tuple[Any, ...], call: str) -> Plain:
    shape = tuple(getattr(value, "shape", ()))
    count = 1
    for length in shape:
        count *= length
    if count != 1:
        raise ValueError(
            f"{_name(path, call)} is a {type(value).__name__} of shape {shape} with {count} elements: give one "
            "number per key, for example "
            f"value.mean().item(), or put the tensor into a checkpoint"
        )
    item = value.item()
    if isinstance(item, (bool, int, float, str)):
        return item
    raise ValueError(
        f"{_name(path, call)} holds a {type(item).__name__}: metrics are numbers, strings, bools, and dicts or lists "
        "of these"
    )


def _name(path: Tuple[Any, ...], call: str) -> str:
    return f"{call}(): metrics" + "".join(f"[{part!r}]" for part in path)
