"""What is said of a start that takes long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.jobs import NOW, attempt, job
from trainjob.launch.local.slow_start import AFTER_S, sentence
from trainjob_operator.core.model import AgentView

START = datetime.fromtimestamp(NOW, UTC)


def view(slot: int, *, warming: bool = False, **begin: int) -> AgentView:
    return AgentView(
        slot=slot,
        pod_uid=str(slot),
        boot=1,
        heard_at=START,
        address="",
        attempt=1,
        warming=warming,
        begin={"told": NOW, **begin},  # type: ignore[typeddict-item]
    )


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([view(0, warming=True), view(1)], "its workers import torch, then its ranks start"),
        ([view(0), view(1)], "its workers prepare the start of its ranks"),
        (
            [view(0, joined=10, forked=20, stopped=0), view(1, joined=10, forked=20, stopped=0)],
            "its ranks run, and import modules or prepare their data; `tj stack digits` shows where they are",
        ),
        (
            [view(at, joined=10, forked=20, stopped=0, group=30) for at in (0, 1)],
            "its ranks are ready, and none has called report() yet; `tj stack digits` shows where they are",
        ),
    ],
)
def test_a_slow_start_says_what_is_under_way_and_how_to_look(views: list[AgentView], said: str) -> None:
    running = job({"attempt": attempt()})
    assert sentence(running, views, START + timedelta(seconds=AFTER_S - 0.1)) is None
    assert sentence(running, views, START + timedelta(seconds=AFTER_S)) == f"attempt 1 began 5 s ago: {said}"


@pytest.mark.parametrize(
    ("status", "begin"),
    [({"attempt": attempt()}, {"first_step": 40}), ({"attempt": attempt(state="Ended")}, {}), ({}, {})],
    ids=["it trains", "it is over", "there is none"],
)
def test_what_trains_or_has_not_begun_says_nothing(status: dict[str, Any], begin: dict[str, int]) -> None:
    assert sentence(job(status), [view(0, **begin), view(1, **begin)], START + timedelta(seconds=60)) is None
