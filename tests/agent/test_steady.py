"""The machine's clock is set while ranks train: what is compared with each other stays comparable."""

from __future__ import annotations

import time

import pytest

from trainjob.agent import steady
from trainjob.agent.processes.rank import Rank
from trainjob_api import contract


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_an_end_before_a_step_is_not_moved_by_it(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    first, second = Rank(0, 0), Rank(1, 1)
    first.take_status(256)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    second.end_without_process(contract.END_LOST, None)
    said_at = steady.now()
    assert first.ended_at is not None and second.ended_at is not None
    assert first.ended_at <= second.ended_at <= said_at < first.ended_at + 60.0
