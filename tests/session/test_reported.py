"""How often a rank that waits for validations looks, by a clock of its own."""

from __future__ import annotations

from typing import Any

import pytest

from trainjob import session
from trainjob.session import reported
from trainjob.session.reported import ReportedCheckpointStatus

ROW = {"id": "1-1-1", "path": "/nowhere", "metrics": {}}


class Line:
    """The agent's answers, and the time: a validation that is over at a moment."""

    def __init__(self, over_at: float) -> None:
        self.now, self.looks, self._over_at = 0.0, 0, over_at

    def reported(self, timeout_s: float | None) -> list[dict[str, Any]]:
        self.looks += 1
        over = self.now >= self._over_at
        status = ReportedCheckpointStatus.VALIDATED if over else ReportedCheckpointStatus.PENDING_VALIDATION
        return [{**ROW, "validation": status.value}]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def waited(
    monkeypatch: pytest.MonkeyPatch, over_at: float, timeout_s: float | None = None, validates: bool = True
) -> tuple[Line, str]:
    line = Line(over_at)
    monkeypatch.setattr(session, "validate", (lambda checkpoint, asked: None) if validates else None)
    monkeypatch.setattr(reported, "link", lambda: line)
    monkeypatch.setattr(reported, "time", line)
    (found,) = reported.get_all_reported_checkpoints(timeout_s=timeout_s)
    return line, found.status.value


def test_a_long_validation_is_looked_for_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    line, status = waited(monkeypatch, 3600.0)
    assert status == "VALIDATED" and line.now <= 3605.0 and line.looks <= 730, line.looks


def test_a_short_one_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    line, status = waited(monkeypatch, 0.2)
    assert (status, line.now, line.looks) == ("VALIDATED", 0.25, 2)


def test_the_time_that_it_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    line, status = waited(monkeypatch, 3600.0, timeout_s=61.0)
    assert (status, line.now) == ("PENDING_VALIDATION", 61.0)


def test_where_nobody_validates_nobody_waits_for_what_an_earlier_attempt_left(monkeypatch: pytest.MonkeyPatch) -> None:
    line, status = waited(monkeypatch, 3600.0, validates=False)
    assert (status, line.now, line.looks) == ("PENDING_VALIDATION", 0.0, 1)
