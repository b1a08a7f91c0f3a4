"""NaN and infinities as JSON, and back."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainjob_api import nonfinite, wire

TEXTS = st.text(max_size=3).filter(lambda text: text not in nonfinite.WORDS)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def strictly(text: str | bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_every_metric_is_json_and_comes_back(metrics: dict[str, Any]) -> None:
    assert same(nonfinite.numbers(strictly(nonfinite.dumps(metrics))), metrics)


def test_the_three_words() -> None:
    assert nonfinite.dumps({"loss": math.nan, "best": [math.inf, {"worst": -math.inf}]}) == (
        '{"loss":"NaN","best":["Infinity",{"worst":"-Infinity"}]}'
    )


def test_a_frame_is_json_that_every_parser_reads() -> None:
    frame = wire.encode({"op": "x", "metrics": {"loss": math.nan}})
    assert strictly(frame[8:])["metrics"] == {"loss": "NaN"}
