"""The demo's figures come from the rows, and its verdict from the figures: each fault must show."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "digits" / "demo.py"
STEPS = 10
"""Steps between two reports in the rows made here."""


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def attempt(number: int, first: int, last: int, begun: float) -> list[dict[str, Any]]:
    """A log row for each step, 0.1 s apart, and a report every STEPS."""
    found: list[dict[str, Any]] = []
    for step in range(first, last + 1):
        row = {"attempt": number, "step": step, "time": begun + (step - first) * 0.1}
        found.append({**row, "kind": "log", "metrics": {}})
        if step % STEPS == 0:
            found.append({**row, "kind": "report", "metrics": {"accuracy": 0.9 + step / 1000}})
    return found


def watch(demo: ModuleType, *printed: int) -> Any:
    return demo.Watch(pid=1, printed=set(printed), killed_at=102.5)


def test_a_clean_recovery_loses_nothing(demo: ModuleType) -> None:
    outcome = demo.measure(attempt(1, 1, 25, 100) + attempt(2, 21, 60, 103), watch(demo, 10, 20))
    assert (outcome.accuracy, outcome.attempts, outcome.lost_steps) == (0.96, 2, 0)
    assert outcome.recovery_s == pytest.approx(0.5)
    assert demo.judge(outcome) == []


def test_steps_that_are_done_again_although_reported_are_lost(demo: ModuleType) -> None:
    assert demo.measure(attempt(1, 1, 25, 100) + attempt(2, 11, 60, 103), watch(demo, 10, 20)).lost_steps == 10


def test_a_report_that_rank_0_printed_and_the_history_lacks_is_lost(demo: ModuleType) -> None:
    rows = [row for row in attempt(1, 1, 25, 100) if row["step"] != 20] + attempt(2, 21, 60, 103)
    assert demo.measure(rows, watch(demo, 10, 20)).lost_steps == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [({"accuracy": 0.949}, "accuracy 0.9490"), ({"attempts": 3}, "not 3"), ({"lost_steps": 1}, "1 steps were lost")],
)
def test_each_fault_fails_the_demo(demo: ModuleType, change: dict[str, Any], said: str) -> None:
    figures = {"accuracy": 0.98, "attempts": 2, "lost_steps": 0, "recovery_s": 1.0}
    assert demo.judge(demo.Outcome(**figures)) == [], "however long it took: a busy machine is no fault"
    assert said in " ".join(demo.judge(demo.Outcome(**figures | change)))


def test_the_victim_is_killed_once_and_not_before_its_epoch(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(demo.os, "kill", lambda pid, number: killed.append((pid, number)))
    eye = demo.Watch()
    eye.read("r00 | rank 0 of 2 pid 41 attempt 1: from epoch 0")
    eye.read("r01 | rank 1 of 2 pid 42 attempt 1: from epoch 0")
    for epoch in range(demo.KILL_AFTER_EPOCH):
        eye.read(f"r00 | epoch {epoch} attempt 1 step {epoch * 45 + 45}: loss 1")
    assert killed == []
    for epoch in (demo.KILL_AFTER_EPOCH, demo.KILL_AFTER_EPOCH):
        eye.read(f"r00 | epoch {epoch} attempt 1 step {epoch * 45 + 45}: loss 1")
    assert killed == [(42, demo.signal.SIGKILL)]


def test_only_a_job_that_says_nothing_is_given_up(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line winds the clock again: a slow machine is no failure, and the job's own words count too."""
    armed: list[float] = []

    class Clock:
        def __init__(self, seconds: float, ring: Any) -> None:
            armed.append(seconds)

        def start(self) -> None:
            return

        cancel = start

    speaks = [sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr)"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.threading, "Timer", Clock)
        assert demo.run(speaks, watch(demo)) == 0
    assert armed == [demo.SILENT_S] * 3
    assert sorted(capsys.readouterr().out.split()) == ["1", "2"]
    assert demo.run([sys.executable, "-c", "import time; time.sleep(600)"], watch(demo), silent_s=0.1) == -9
    assert "demo | nothing was said for 0.1 s: the job is ended" in capsys.readouterr().err
