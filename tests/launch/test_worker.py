"""The forms of a training function, and the stop criterion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from trainjob.launch import worker
from trainjob.launch.errors import ConfigError


class Loop:
    def __call__(self, config: dict[str, Any]) -> Any:
        return config["x"]


class Bare:
    def __call__(self) -> str:
        return "bare"


def plain() -> str:
    return "plain"


def optional(config: dict[str, Any] | None = None) -> Any:
    return config


@pytest.mark.parametrize(
    ("loop", "config", "returned"),
    [
        (plain, {"x": 1}, "plain"),
        (lambda config: config, None, {}),
        (lambda config: config["x"], {"x": 1}, 1),
        (optional, {"x": 1}, {"x": 1}),
        (Loop, {"x": 2}, 2),
        (Loop(), {"x": 3}, 3),
        (Bare, None, "bare"),
        (functools.partial(lambda config, y: (config, y), y=5), {"x": 1}, ({"x": 1}, 5)),
        (lambda *args: args, {"x": 1}, ({"x": 1},)),
    ],
)
def test_each_form_is_called_as_it_wants(loop: Callable[..., Any], config: dict[str, Any] | None, returned: object) -> None:
    worker.check_loop(loop)
    assert worker.call(loop, config) == returned


@pytest.mark.parametrize("loop", [3, lambda a, b: None, lambda config, *, key: None, object])
def test_what_could_not_be_called_is_refused_in_the_launcher(loop: object) -> None:
    with pytest.raises(ConfigError, match="train_loop_per_worker"):
        worker.check_loop(loop)


@pytest.mark.parametrize(
    ("criterion", "metrics", "stops"),
    [
        ({"accuracy": 0.9}, {"accuracy": 0.9}, True),
        ({"accuracy": 0.9}, {"accuracy": 0.8}, False),
        ({"accuracy": 0.9}, {}, False),
        ({"accuracy": 0.9, "step": 3}, {"accuracy": 0.1, "step": 3}, True),
        (lambda metrics: metrics["x"] > 1, {"x": 2}, True),
        (lambda trial, metrics: metrics["x"] > 1, {"x": 1}, False),
    ],
)
def test_the_stop_criterion_in_its_forms(criterion: Any, metrics: dict[str, float], stops: bool) -> None:
    assert worker.predicate(criterion)(metrics) is stops
