from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from trainjob.session.metrics import plain


def test_json_values_pass_as_they_are() -> None:
    given = {
        "loss": 0.5,
        "epoch": 3,
        "done": False,
        "note": "ok",
        "none": None,
        "nested": {"a": {"b": 1}},
        "list": [1, 2.5],
    }
    assert plain(given) == given


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([[4]]), 4),
        (Fraction(1, 4), 0.25),
        ((1, 2), [1, 2]),
        ({1: np.float64(0.25)}, {"1": 0.25}),
        (math.inf, math.inf),
    ],
)
def test_scalars_become_python_values(value: Any, expected: Any) -> None:
    converted = plain({"x": value})["x"]
    assert converted == expected
    assert type(converted) is type(expected)


def test_nan_passes() -> None:
    assert math.isnan(plain({"loss": float("nan")})["loss"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"acc": np.zeros((2, 3))}, ["metrics['acc']", "(2, 3)", "6 elements", "mean().item()"]),
        ({"a": {"b": np.zeros(2)}}, ["metrics['a']['b']"]),
        ({"a": [0, object()]}, ["metrics['a'][1]", "object"]),
        ({"z": np.complex64(1)}, ["metrics['z']", "complex"]),
        ({"f": print}, ["metrics['f']", "builtin_function_or_method"]),
        ([1], ["needs a dict", "list"]),
    ],
)
def test_what_is_no_metric_is_named(metrics: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        plain(metrics)
    for word in words:
        assert word in str(caught.value)


def test_a_dict_inside_itself_is_refused() -> None:
    metrics: dict[str, Any] = {}
    metrics["self"] = metrics
    with pytest.raises(ValueError, match="levels deep"):
        plain(metrics)


@pytest.mark.slow
def test_torch_values() -> None:
    torch = pytest.importorskip("torch")
    assert plain({"loss": torch.tensor(0.5, requires_grad=True), "n": torch.tensor([3])}) == {"loss": 0.5, "n": 3}
    with pytest.raises(ValueError, match=r"metrics\['logits'\] is a Tensor of shape \(2, 2\)"):
        plain({"logits": torch.zeros(2, 2)})
