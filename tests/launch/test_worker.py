"""The forms of a training function, and the stop criterion."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch import worker
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover.payload import Header
from trainjob.launch.handover.returned import new_key, opened
from trainjob_api import contract


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
def test_each_form_is_called_as_it_wants(
    loop: Callable[..., Any], config: dict[str, Any] | None, returned: object
) -> None:
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


# --- What the function returned, on a cluster -------------------------------------------------------------------------


def test_a_return_value_is_left_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "returned"
    monkeypatch.setenv(contract.ENV_STORAGE, "s3://bucket/job")
    monkeypatch.setenv(contract.ENV_RETURN_FILE, str(file))
    header = Header(return_key=new_key())
    worker._hand_over(header, {"loss": 0.5})
    assert pickle.loads(opened(str(header.return_key), file.read_bytes()) or b"") == {"loss": 0.5}
    assert opened(new_key(), file.read_bytes()) is None
    assert opened(str(header.return_key), file.read_bytes() + b"x") is None
    worker._hand_over(header, "x" * (worker.RETURN_LIMIT + 1))
    assert not file.exists(), "that of an earlier attempt does not count"
    assert "16 MiB are more than 16 MiB; save it in a checkpoint" in capsys.readouterr().err
    worker._hand_over(Header(), 1)
    worker._hand_over(Header(), None)
    assert not file.exists()


def test_without_storage_one_line_says_that_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.ENV_STORAGE, "")
    monkeypatch.setenv(contract.ENV_RETURN_FILE, str(tmp_path / "returned"))
    worker._hand_over(Header(), None)
    assert capsys.readouterr().err == ""
    worker._hand_over(Header(), {"loss": 0.5})
    assert "not kept: the job has no storage" in capsys.readouterr().err
    assert not (tmp_path / "returned").exists()
